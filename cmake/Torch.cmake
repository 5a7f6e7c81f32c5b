# LibTorch from the Python wheel, without find_package(Torch), which wants a CUDA toolkit.
#   fedshard::torch       headers, torch_cpu and c10, Gloo enabled (with our stub headers, see worker/collective/gloo_stubs)
#   fedshard::torch_cuda  adds the CUDA libraries and NCCL headers; only where the wheel has them (FEDSHARD_CUDA)
# FEDSHARD_TORCH (cache or environment) names the torch folder; default: the one in .venv.

set(FEDSHARD_TORCH "$ENV{FEDSHARD_TORCH}" CACHE PATH "Folder of the torch package (holds include/ and lib/)")
if(NOT FEDSHARD_TORCH)
  file(GLOB found "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  if(NOT found)
    message(FATAL_ERROR "LibTorch not found. Run scripts/setup, or set FEDSHARD_TORCH to a folder with include/ and lib/.")
  endif()
  list(GET found 0 first)
  set_property(CACHE FEDSHARD_TORCH PROPERTY VALUE "${first}")
endif()
set(torch_dir "${FEDSHARD_TORCH}")
if(NOT EXISTS "${torch_dir}/include/ATen/ATen.h")
  message(FATAL_ERROR "FEDSHARD_TORCH=${torch_dir} has no include/ATen/ATen.h")
endif()

set(FEDSHARD_TORCH_VERSION unknown)
if(EXISTS "${torch_dir}/version.py")
  file(STRINGS "${torch_dir}/version.py" version_line REGEX "^__version__")
  string(REGEX REPLACE ".*'([^']+)'.*" "\\1" FEDSHARD_TORCH_VERSION "${version_line}")
endif()
if(NOT FEDSHARD_TORCH_VERSION MATCHES "^2\\.11\\.")
  message(WARNING "fedshard is tested with LibTorch 2.11.0; this is ${FEDSHARD_TORCH_VERSION}")
endif()

# The wheel's include folder carries protobuf 3.13, which must never shadow the system's: searched last.
add_library(fedshard_torch INTERFACE)
add_library(fedshard::torch ALIAS fedshard_torch)
target_compile_options(fedshard_torch INTERFACE
  "SHELL:-idirafter ${torch_dir}/include/torch/csrc/api/include" "SHELL:-idirafter ${torch_dir}/include")
target_include_directories(fedshard_torch SYSTEM INTERFACE "${CMAKE_SOURCE_DIR}/worker/collective/gloo_stubs")
target_compile_definitions(fedshard_torch INTERFACE USE_C10D_GLOO)
target_link_directories(fedshard_torch INTERFACE "${torch_dir}/lib")
target_link_options(fedshard_torch INTERFACE
  "LINKER:-rpath,${torch_dir}/lib" "LINKER:--allow-shlib-undefined")
target_link_libraries(fedshard_torch INTERFACE torch_cpu c10)

get_filename_component(site_packages "${torch_dir}" DIRECTORY)
set(nvidia_dir "${site_packages}/nvidia")
set(FEDSHARD_NVIDIA "${nvidia_dir}")
set(FEDSHARD_CUDA OFF)
if(EXISTS "${torch_dir}/lib/libtorch_cuda.so" AND EXISTS "${nvidia_dir}/cu13/include/cuda_runtime.h"
   AND EXISTS "${nvidia_dir}/nccl/include/nccl.h")
  set(FEDSHARD_CUDA ON)
  add_library(fedshard_torch_cuda INTERFACE)
  add_library(fedshard::torch_cuda ALIAS fedshard_torch_cuda)
  target_link_libraries(fedshard_torch_cuda INTERFACE fedshard_torch torch_cuda c10_cuda)
  target_include_directories(fedshard_torch_cuda SYSTEM INTERFACE
    "${nvidia_dir}/cu13/include" "${nvidia_dir}/nccl/include")
  target_compile_definitions(fedshard_torch_cuda INTERFACE USE_C10D_NCCL)
  target_link_directories(fedshard_torch_cuda INTERFACE "${nvidia_dir}/cu13/lib" "${nvidia_dir}/nccl/lib")
  target_link_options(fedshard_torch_cuda INTERFACE
    "LINKER:-rpath,${nvidia_dir}/cu13/lib" "LINKER:-rpath,${nvidia_dir}/nccl/lib")
  target_link_libraries(fedshard_torch_cuda INTERFACE -l:libcudart.so.13)
endif()
message(STATUS "LibTorch ${FEDSHARD_TORCH_VERSION} in ${torch_dir}; CUDA parts: ${FEDSHARD_CUDA}")
