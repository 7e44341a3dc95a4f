// The request of a worker to a part of tables that grow.

#ifndef TF_SYNCREP_CC_KERNELS_TABLE_REQUEST_H_
#define TF_SYNCREP_CC_KERNELS_TABLE_REQUEST_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

// It has the number of keys of each table, and then the keys, table by table.
class TableRequest {
 public:
  absl::Status Read(const tensorflow::Tensor& request, int64_t num_tables) {
    if (request.dims() != 1 || request.dim_size(0) < num_tables) {
      return absl::InvalidArgumentError(absl::StrCat(
          "request must be a vector that begins with the numbers of keys of ",
          num_tables, " tables, but has shape ",
          request.shape().DebugString()));
    }
    const auto* const data = Data<const int64_t>(request);
    const int64_t size = request.dim_size(0) - num_tables;
    begins_ = {0};
    for (int64_t i = 0; i < num_tables; ++i) {
      const int64_t num = ReadOnce(&data[i]);
      if (num < 0 || num > size - begins_.back()) {
        return absl::InvalidArgumentError(
            absl::StrCat("request[", i, "] must say how many of ", size,
                         " keys are of table ", i, ", but is ", num));
      }
      begins_.push_back(begins_.back() + num);
    }
    if (begins_.back() != size) {
      return absl::InvalidArgumentError(
          absl::StrCat("request must say of which tables its ", size,
                       " keys are, but does of ", begins_.back()));
    }
    if (size > INT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat(
          "request must have fewer than 2^31 keys, but has ", size));
    }
    keys_ = data + num_tables;
    return absl::OkStatus();
  }

  const int64_t* keys() const { return keys_; }
  int64_t num_keys() const { return begins_.back(); }
  // Returns where the keys of a table begin. For num_tables it is where the
  // last ones end.
  int64_t begin(int64_t table) const { return begins_[table]; }
  const std::vector<int64_t>& begins() const { return begins_; }
  int64_t size(int64_t table) const {
    return begins_[table + 1] - begins_[table];
  }

 private:
  std::vector<int64_t> begins_;
  const int64_t* keys_ = nullptr;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_TABLE_REQUEST_H_
