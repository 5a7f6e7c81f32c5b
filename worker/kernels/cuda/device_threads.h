// The lanes of a thread block on the GPU; see lanes.h. nvcc only.
#pragma once

namespace fedshard::kernels::cuda {

class DeviceThreads {
 public:
  // shared: 32 floats of the block's shared memory.
  __device__ explicit DeviceThreads(float* shared) : shared_(shared) {}
  __device__ int lane() const { return static_cast<int>(threadIdx.x); }
  __device__ int lanes() const { return static_cast<int>(blockDim.x); }
  __device__ float Shuffle(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
  __device__ void Sync() { __syncthreads(); }
  __device__ float* shared() { return shared_; }

 private:
  float* shared_;
};

}  // namespace fedshard::kernels::cuda
