# CUDA sources through plain commands: CMake's own CUDA language would hand nvcc the options meant for g++, and looks for a whole
# toolkit, where the compiler is enough. FEDSHARD_KERNELS: whether the kernels are built (an nvcc of the wheel's CUDA is there).
#   fedshard_cuda_objects(OUT_VARIABLE a.cu b.cu)   object files, to be listed as sources of a target that links cudart

set(FEDSHARD_CUDA_ARCHITECTURES "80;90" CACHE STRING
  "GPU architectures of the kernels; the last one also as PTX, for newer GPUs")
set(FEDSHARD_KERNELS OFF)
if(FEDSHARD_CUDA)
  find_program(FEDSHARD_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(FEDSHARD_NVCC)
    execute_process(COMMAND ${FEDSHARD_NVCC} --version OUTPUT_VARIABLE nvcc_version)
    string(REGEX MATCH "release ([0-9]+)\\.[0-9]+" nvcc_version "${nvcc_version}")
    if(CMAKE_MATCH_1 STREQUAL 13)  # Objects register themselves with the runtime, which is the wheel's.
      set(FEDSHARD_KERNELS ON)
    endif()
    message(STATUS "nvcc ${nvcc_version} in ${FEDSHARD_NVCC}; CUDA kernels: ${FEDSHARD_KERNELS}"
      " (for ${FEDSHARD_CUDA_ARCHITECTURES})")
  else()
    message(STATUS "nvcc not found; CUDA kernels: OFF, ranks on a GPU run the references")
  endif()
endif()

set(nvcc_architectures "")
foreach(architecture IN LISTS FEDSHARD_CUDA_ARCHITECTURES)
  list(APPEND nvcc_architectures -gencode arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(GET FEDSHARD_CUDA_ARCHITECTURES -1 newest)
list(APPEND nvcc_architectures -gencode arch=compute_${newest},code=compute_${newest})
set(nvcc_command ${CMAKE_CXX_COMPILER_LAUNCHER} ${FEDSHARD_NVCC} -c -std=c++17 -O3 -ccbin ${CMAKE_CXX_COMPILER}
  ${nvcc_architectures} -Xcompiler=-fPIC,-Wall,-Wextra -I${CMAKE_SOURCE_DIR})

function(fedshard_cuda_objects out)
  set(objects "")
  foreach(source IN LISTS ARGN)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${source}.o")
    get_filename_component(folder "${object}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    add_custom_command(OUTPUT "${object}"
      COMMAND ${nvcc_command} -MD -MF "${object}.d" -MT "${object}" -o "${object}" "${CMAKE_CURRENT_SOURCE_DIR}/${source}"
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}" DEPFILE "${object}.d"
      COMMENT "Building CUDA object ${source}.o" VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
