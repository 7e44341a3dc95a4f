// Reads of memory that its owner may change meanwhile.

#ifndef TF_SYNCREP_CC_LIB_READ_ONCE_H_
#define TF_SYNCREP_CC_LIB_READ_ONCE_H_

namespace tf_syncrep {

// Reads a number in an array of the caller's, such as a NumPy array that a
// tensor shares, exactly once. A compiler may read a plain element twice, and
// then the value that was checked need not be the value that is used.
template <typename T>
T ReadOnce(const T* at) {
  return __atomic_load_n(at, __ATOMIC_RELAXED);
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_READ_ONCE_H_
