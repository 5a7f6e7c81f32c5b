#include "worker/engine/shard_loading.h"

#include <ATen/ATen.h>

namespace fedshard::engine {

void LoadShards(const ModelLayout& layout, int shard, const FillFunction& fill,
                const std::vector<at::Tensor>& shards) {
  for (size_t unit = 0; unit < shards.size(); ++unit) {
    const int index = static_cast<int>(unit);
    at::Tensor target = shards[unit];
    const bool direct = target.is_cpu() && target.scalar_type() == at::kFloat;
    at::Tensor host = direct ? target : at::empty({target.numel()}, at::kFloat);
    host.zero_();
    float* data = host.mutable_data_ptr<float>();
    for (const ShardPiece& piece : layout.Pieces(index, shard)) {
      fill(layout.units()[index].parameters[piece.parameter].name, piece.parameter_offset,
           piece.length, data + piece.shard_offset);
    }
    if (!direct) target.copy_(host);
  }
}

}  // namespace fedshard::engine
