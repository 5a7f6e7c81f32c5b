// Exit codes of fedshard-trainer: for the process itself, for the worker that started it and for
// those who explain its end.
#pragma once

namespace fedshard {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 3;      // Said why in a RankFailure.
inline constexpr int kExitLostWorker = 4;  // The stream to the worker closed.
inline constexpr int kExitStopped = 5;     // Asked to stop, by the worker or SIGTERM.
inline constexpr int kExitCollective = 6;  // A collective failed; a peer is probably gone.
// A communicator of NCCL failed: taking it down can hang, so the process ends on the spot and says
// why in its log only.
inline constexpr int kExitNccl = 8;

}  // namespace fedshard
