// Arrays as large as a user's data, for which there may be no memory.

#ifndef TF_SYNCREP_CC_LIB_ARRAY_H_
#define TF_SYNCREP_CC_LIB_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace tf_syncrep {

// Elements of a plain type, in memory of their own. A std::vector throws when
// there is no memory, and nobody catches the exception: the process would end,
// and with it the training of everybody. Here it is a return value.
template <typename T>
class Array {
 public:
  static_assert(std::is_trivial_v<T>, "elements are not constructed");

  // Replaces the elements by `size` new ones, whose values are arbitrary.
  // Returns false, and the array is empty, when there is no memory.
  [[nodiscard]] bool Allocate(int64_t size) {
    data_.reset(new (std::nothrow) T[static_cast<size_t>(size)]);
    size_ = data_ == nullptr ? 0 : size;
    return data_ != nullptr;
  }

  int64_t size() const { return size_; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T* begin() { return data(); }
  const T* begin() const { return data(); }
  T* end() { return data() + size_; }
  const T* end() const { return data() + size_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  std::unique_ptr<T[]> data_;
  int64_t size_ = 0;
};

// Appends an element. Returns false, and leaves the vector as it was, when
// there is no memory.
template <typename T>
[[nodiscard]] bool Append(T element, std::vector<T>* elements) {
  try {
    elements->push_back(std::move(element));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ARRAY_H_
