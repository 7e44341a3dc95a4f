// Kernels that arrange looked-up rows for features, and their gradients. They
// check their inputs, call cc/lib/rows/row_combine and set the outputs.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/lib/rows/row_combine.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/head_room.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::DEVICE_CPU;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;

absl::Status NoMemory(const OpInputList& vectors) {
  int64_t bytes = 0;
  for (int i = 0; i < vectors.size(); ++i) {
    bytes += static_cast<int64_t>(vectors[i].TotalBytes());
  }
  return OutOfMemory("the places of rows that are combined", bytes);
}

absl::Status NoSuchPlace() {
  return absl::InvalidArgumentError(
      "places must name rows of vectors; one does not");
}

// The features' attributes and inputs, which both ops have.
template <typename T>
class CombineOpBase : public OpKernel {
 public:
  using LibT = LibType<T>;
  using Sum = SlotType<LibT>;

  explicit CombineOpBase(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<std::string> combiners;
    tensorflow::DataType sum_dtype;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("combiners", &combiners));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("is_ragged", &is_ragged_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("is_weighted", &is_weighted_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tsum", &sum_dtype));
    OP_REQUIRES(ctx, sum_dtype == DataTypeToEnum<Sum>::value,
                absl::InvalidArgumentError(absl::StrCat(
                    "Tsum must be ",
                    tensorflow::DataTypeString(DataTypeToEnum<Sum>::value))));
    int num_features;
    int num_ragged;
    int num_weighted;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_features", &num_features));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_ragged", &num_ragged));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_weighted", &num_weighted));
    const auto size = static_cast<size_t>(num_features);
    OP_REQUIRES(ctx,
                combiners.size() == size && is_ragged_.size() == size &&
                    is_weighted_.size() == size,
                absl::InvalidArgumentError(absl::StrCat(
                    "combiners, is_ragged and is_weighted must be of ",
                    num_features, " features, but are of ", combiners.size(),
                    ", ", is_ragged_.size(), " and ", is_weighted_.size())));
    for (size_t f = 0; f < size; ++f) {
      combiners_.push_back(combiners[f] == "none"   ? Combiner::kNone
                           : combiners[f] == "sum"  ? Combiner::kSum
                           : combiners[f] == "mean" ? Combiner::kMean
                                                    : Combiner::kSqrtn);
      OP_REQUIRES(ctx,
                  combiners_[f] != Combiner::kNone ||
                      (!is_ragged_[f] && !is_weighted_[f]),
                  absl::InvalidArgumentError(absl::StrCat(
                      "feature ", f,
                      " is ragged or weighted: it must have a combiner")));
      num_ragged -= is_ragged_[f];
      num_weighted -= is_weighted_[f];
    }
    OP_REQUIRES(ctx, num_ragged == 0 && num_weighted == 0,
                absl::InvalidArgumentError(
                    "there must be row_splits for each feature that is ragged, "
                    "and weights for each that is weighted"));
  }

 protected:
  // Sets the features and the shapes of their results.
  absl::Status GetFeatures(OpKernelContext* ctx, int64_t width,
                           std::vector<CombinedFeature>* features,
                           std::vector<TensorShape>* shapes) const {
    OpInputList places;
    OpInputList row_splits;
    OpInputList weights;
    TF_RETURN_IF_ERROR(ctx->input_list("places", &places));
    TF_RETURN_IF_ERROR(ctx->input_list("row_splits", &row_splits));
    TF_RETURN_IF_ERROR(ctx->input_list("weights", &weights));
    int next_splits = 0;
    int next_weights = 0;
    for (int f = 0; f < places.size(); ++f) {
      const Tensor& ids = places[f];
      CombinedFeature feature = {combiners_[f],
                                 Data<const int32_t>(ids),
                                 ids.NumElements(),
                                 ids.NumElements(),
                                 1,
                                 nullptr,
                                 nullptr};
      TensorShape shape = ids.shape();
      if (is_ragged_[f]) {
        const Tensor& splits = row_splits[next_splits++];
        TF_RETURN_IF_ERROR(CheckSplits(f, ids, splits));
        feature.row_splits = Data<const int64_t>(splits);
        feature.num_results = splits.NumElements() - 1;
        shape = TensorShape({feature.num_results});
      } else if (combiners_[f] != Combiner::kNone) {
        if (shape.dims() == 0) {
          return absl::InvalidArgumentError(absl::StrCat(
              "places of feature ", f, " must have an axis to combine"));
        }
        feature.ids_per_result = shape.dim_size(shape.dims() - 1);
        shape.RemoveLastDims(1);
        feature.num_results = shape.num_elements();
      }
      if (is_weighted_[f]) {
        const Tensor& of_ids = weights[next_weights++];
        if (of_ids.NumElements() != ids.NumElements()) {
          return absl::InvalidArgumentError(absl::StrCat(
              "feature ", f, " must have as many weights as ids, ",
              ids.NumElements(), ", but has ", of_ids.NumElements()));
        }
        feature.weights = Data<const float>(of_ids);
      }
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(width));
      features->push_back(feature);
      shapes->push_back(shape);
    }
    return absl::OkStatus();
  }

  static absl::Status GetWidth(const OpInputList& vectors, int64_t* width) {
    int64_t num_rows = 0;
    for (int shard = 0; shard < vectors.size(); ++shard) {
      const TensorShape& shape = vectors[shard].shape();
      if (!TensorShapeUtils::IsMatrix(shape) ||
          (shard > 0 && shape.dim_size(1) != *width)) {
        return absl::InvalidArgumentError(
            absl::StrCat("vectors must be matrices of one width, but those of "
                         "shard ",
                         shard, " have shape ", shape.DebugString()));
      }
      *width = shape.dim_size(1);
      num_rows += shape.dim_size(0);
    }
    if (num_rows > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "vectors must have fewer than 2^31 rows, but have ", num_rows));
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status CheckSplits(int f, const Tensor& ids,
                                  const Tensor& splits) {
    if (!TensorShapeUtils::IsVector(ids.shape()) ||
        !TensorShapeUtils::IsVector(splits.shape()) ||
        splits.NumElements() == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "places and row_splits of feature ", f,
          " must be vectors, the second not empty, but have shapes ",
          ids.shape().DebugString(), " and ", splits.shape().DebugString()));
    }
    const auto* const split = Data<const int64_t>(splits);
    const int64_t last = splits.NumElements() - 1;
    bool is_good = split[0] == 0 && split[last] == ids.NumElements();
    for (int64_t i = 0; i < last; ++i) {
      is_good = is_good && split[i] <= split[i + 1];
    }
    if (!is_good) {
      return absl::InvalidArgumentError(
          absl::StrCat("row_splits of feature ", f, " must ascend from 0 to ",
                       ids.NumElements(), ", its number of ids"));
    }
    return absl::OkStatus();
  }

  std::vector<Combiner> combiners_;
  std::vector<bool> is_ragged_;
  std::vector<bool> is_weighted_;
};

template <typename T>
class EmbeddingCombineOp final : public CombineOpBase<T> {
 public:
  using Base = CombineOpBase<T>;
  using Base::Base;
  using typename Base::LibT;
  using typename Base::Sum;

  void Compute(OpKernelContext* ctx) override {
    OpInputList vectors;
    OpOutputList results;
    OP_REQUIRES_OK(ctx, ctx->input_list("vectors", &vectors));
    OP_REQUIRES_OK(ctx, ctx->output_list("results", &results));
    int64_t width = 0;
    OP_REQUIRES_OK(ctx, Base::GetWidth(vectors, &width));
    std::vector<CombinedFeature> features;
    std::vector<TensorShape> shapes;
    OP_REQUIRES_OK(ctx, this->GetFeatures(ctx, width, &features, &shapes));
    std::vector<ShardRows<const LibT>> shards;
    for (int shard = 0; shard < vectors.size(); ++shard) {
      const Tensor& rows = vectors[shard];
      shards.push_back({Data<const LibT>(rows), rows.dim_size(0)});
    }
    std::vector<Sum*> sums;
    for (int f = 0; f < results.size(); ++f) {
      Tensor* result;
      OP_REQUIRES_OK(ctx, results.allocate(f, shapes[f], &result));
      sums.push_back(Data<Sum>(*result));
    }
    DeviceSharder sharder(ctx);
    bool has_memory;
    const bool is_done =
        CombineRows(shards, width, features, sums, sharder, &has_memory);
    OP_REQUIRES(ctx, is_done, has_memory ? NoSuchPlace() : NoMemory(vectors));
  }
};

template <typename T>
class EmbeddingCombineGradOp final : public CombineOpBase<T> {
 public:
  using Base = CombineOpBase<T>;
  using typename Base::LibT;
  using typename Base::Sum;

  explicit EmbeddingCombineGradOp(OpKernelConstruction* ctx) : Base(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("head_rows", &head_rows_));
    OP_REQUIRES(ctx,
                head_rows_.empty() ||
                    static_cast<int>(head_rows_.size()) == ctx->num_outputs(),
                absl::InvalidArgumentError(
                    absl::StrCat("head_rows must be of ", ctx->num_outputs(),
                                 " shards, but is of ", head_rows_.size())));
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList gradients;
    OpInputList vectors;
    OP_REQUIRES_OK(ctx, ctx->input_list("gradients", &gradients));
    OP_REQUIRES_OK(ctx, ctx->input_list("vectors", &vectors));
    int64_t width = 0;
    OP_REQUIRES_OK(ctx, Base::GetWidth(vectors, &width));
    std::vector<CombinedFeature> features;
    std::vector<TensorShape> shapes;
    OP_REQUIRES_OK(ctx, this->GetFeatures(ctx, width, &features, &shapes));
    std::vector<const Sum*> of_results;
    for (int f = 0; f < gradients.size(); ++f) {
      OP_REQUIRES(ctx, gradients[f].NumElements() == shapes[f].num_elements(),
                  absl::InvalidArgumentError(absl::StrCat(
                      "the gradient of feature ", f, " must have shape ",
                      shapes[f].DebugString(), ", but has ",
                      gradients[f].shape().DebugString())));
      of_results.push_back(Data<const Sum>(gradients[f]));
    }
    std::vector<ShardRows<LibT>> shards;
    std::vector<Tensor> sums(vectors.size());
    for (int shard = 0; shard < vectors.size(); ++shard) {
      const int64_t num_rows = vectors[shard].dim_size(0);
      const int64_t head_rows = head_rows_.empty() ? 0 : head_rows_[shard];
      OP_REQUIRES_OK(
          ctx, AllocateWithHeadRoom(ctx, DataTypeToEnum<T>::value, head_rows,
                                    num_rows, width, &sums[shard]));
      shards.push_back({Data<LibT>(sums[shard]), num_rows});
    }
    DeviceSharder sharder(ctx);
    bool has_memory;
    const bool is_done = CombineRowsGradient(shards, width, features,
                                             of_results, sharder, &has_memory);
    OP_REQUIRES(ctx, is_done, has_memory ? NoSuchPlace() : NoMemory(vectors));
    for (int shard = 0; shard < vectors.size(); ++shard) {
      ctx->set_output(shard, sums[shard]);
    }
  }

 private:
  std::vector<int64_t> head_rows_;
};

#define TF_SYNCREP_REGISTER(T)                                 \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>EmbeddingCombine")     \
                              .Device(DEVICE_CPU)              \
                              .TypeConstraint<T>("T"),         \
                          EmbeddingCombineOp<T>);              \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>EmbeddingCombineGrad") \
                              .Device(DEVICE_CPU)              \
                              .TypeConstraint<T>("T"),         \
                          EmbeddingCombineGradOp<T>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
