# Script: writes version.cc when the revision or a version changed. Run at each build, so that it cannot go stale.
#   cmake -DSOURCE=… -DTEMPLATE=… -DOUTPUT=… -DPROJECT_VERSION=… -DTORCH_VERSION=… -DNCCL_VERSION=… -DCUDA_VERSION=… -P …
set(REVISION unknown)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C "${SOURCE}" describe --always --dirty --exclude=*
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed AND found)
    set(REVISION "${found}")
  endif()
endif()
configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)
