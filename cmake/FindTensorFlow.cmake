# Finds the TensorFlow of ${Python_EXECUTABLE}, and takes its flags from it.
#
# Defines
#   TensorFlow_VERSION         as in tf.__version__
#   TensorFlow_COMPILE_FLAGS   the ABI flags that TensorFlow was built with
#   TensorFlow_CUDA            ON or OFF: whether it was built with CUDA
#   TensorFlow::TensorFlow     headers (as system headers), flags and
#                              libtensorflow_framework
#   TensorFlow::Servers        headers of its servers, and libtensorflow_cc; not there
#                              if this TensorFlow has none
#
# Python runs with -E, so that the PYTHONPATH by which pip isolates a build is
# not seen: with it TensorFlow would be hidden. Where that finds none (status 1),
# the environment is tried as it is, for those whose TensorFlow is on PYTHONPATH.

set(_probe "${CMAKE_CURRENT_LIST_DIR}/tensorflow_probe.py")
foreach(_option -E -B)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" ${_option} "${_probe}"
    OUTPUT_VARIABLE _facts
    ERROR_VARIABLE _errors
    RESULT_VARIABLE _status)
  if(NOT _status EQUAL 1)
    break()
  endif()
endforeach()

if(_status EQUAL 0)
  foreach(_key VERSION INCLUDE_DIR LIBRARY CC_LIBRARY COMPILE_FLAGS CUDA)
    string(REGEX MATCH "(^|\n)${_key}=([^\n]*)" _line "${_facts}")
    set(TensorFlow_${_key} "${CMAKE_MATCH_2}")
  endforeach()
  # The version in numbers alone: 2.21.0-rc1 is 2.21.0.
  string(REGEX MATCH "^([0-9]+)\\.([0-9]+)\\.([0-9]+)" _line "${TensorFlow_VERSION}")
  set(TensorFlow_VERSION_MAJOR "${CMAKE_MATCH_1}")
  set(TensorFlow_VERSION_MINOR "${CMAKE_MATCH_2}")
  set(TensorFlow_VERSION_PATCH "${CMAKE_MATCH_3}")
elseif(TensorFlow_FIND_REQUIRED)
  message(FATAL_ERROR "${_errors}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TensorFlow
  REQUIRED_VARS TensorFlow_LIBRARY TensorFlow_INCLUDE_DIR
  VERSION_VAR TensorFlow_VERSION)

if(TensorFlow_FOUND AND NOT TARGET TensorFlow::TensorFlow)
  add_library(TensorFlow::TensorFlow SHARED IMPORTED)
  separate_arguments(_flags UNIX_COMMAND "${TensorFlow_COMPILE_FLAGS}")
  # New TensorFlow headers no longer define these macros.
  set_target_properties(
    TensorFlow::TensorFlow
    PROPERTIES IMPORTED_LOCATION "${TensorFlow_LIBRARY}"
               INTERFACE_COMPILE_OPTIONS "${_flags}"
               INTERFACE_COMPILE_DEFINITIONS
               "TF_MAJOR_VERSION=${TensorFlow_VERSION_MAJOR};TF_MINOR_VERSION=${TensorFlow_VERSION_MINOR};TF_PATCH_VERSION=${TensorFlow_VERSION_PATCH}"
               INTERFACE_INCLUDE_DIRECTORIES "${TensorFlow_INCLUDE_DIR}")
endif()

# TensorFlow 2.22 calls gRPC as Bazel's registry does.
set(_grpc "${TensorFlow_INCLUDE_DIR}/external/grpc")
if(NOT EXISTS "${_grpc}")
  set(_grpc "${TensorFlow_INCLUDE_DIR}/external/com_github_grpc_grpc")
endif()

if(TensorFlow_FOUND AND EXISTS "${TensorFlow_CC_LIBRARY}" AND NOT TARGET TensorFlow::Servers)
  add_library(TensorFlow::Servers SHARED IMPORTED)
  # Who links it links TensorFlow::TensorFlow first, and it does not bring that along,
  # which would then come behind it: of TensorFlow 2.15 each has a registry of servers,
  # and Python uses that of libtensorflow_framework.
  set_target_properties(TensorFlow::Servers PROPERTIES IMPORTED_LOCATION
                                                       "${TensorFlow_CC_LIBRARY}")
  target_include_directories(
    TensorFlow::Servers
    INTERFACE "${_grpc}/include" "${_grpc}"
              "${TensorFlow_INCLUDE_DIR}/external/farmhash_archive/src")
endif()
