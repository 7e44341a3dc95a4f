// The kernel that finds which keys a batch needs: checks, calls
// cc/lib/table/key_requests, hands back.

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/lib/table/key_requests.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DT_INT32;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class TableRequestsOp final : public OpKernel {
 public:
  explicit TableRequestsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_shards", &num_shards_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_tables", &num_tables_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_of_feature", &table_of_feature_));
    OP_REQUIRES(ctx,
                static_cast<int>(table_of_feature_.size()) == ctx->num_inputs(),
                absl::InvalidArgumentError(absl::StrCat(
                    "table_of_feature must be of ", ctx->num_inputs(),
                    " features, but is of ", table_of_feature_.size())));
    for (const int64_t table : table_of_feature_) {
      OP_REQUIRES(ctx, table >= 0 && table < num_tables_,
                  absl::InvalidArgumentError(
                      absl::StrCat("table_of_feature must be in [0, ",
                                   num_tables_, "), but one is ", table)));
    }
    OP_REQUIRES(
        ctx, num_tables_ <= std::numeric_limits<int32_t>::max() / num_shards_,
        absl::InvalidArgumentError(absl::StrCat(
            "num_shards and num_tables must have a product below 2^31, but "
            "are ",
            num_shards_, " and ", num_tables_)));
  }

  void Compute(OpKernelContext* ctx) override {
    std::vector<FeatureKeys> features;
    int64_t num_ids = 0;
    for (int f = 0; f < ctx->num_inputs(); ++f) {
      const Tensor& ids = ctx->input(f);
      const bool is_narrow = ids.dtype() == DT_INT32;
      features.push_back({is_narrow ? Data<const int32_t>(ids) : nullptr,
                          is_narrow ? nullptr : Data<const int64_t>(ids),
                          ids.NumElements(),
                          static_cast<int32_t>(table_of_feature_[f])});
      num_ids += ids.NumElements();
    }
    OP_REQUIRES(
        ctx, num_ids < std::numeric_limits<int32_t>::max(),
        absl::InvalidArgumentError(absl::StrCat(
            "a batch must have fewer than 2^31 ids, but has ", num_ids)));
    DeviceSharder sharder(ctx);
    KeyRequests keys;
    OP_REQUIRES(ctx, keys.Find(features, num_tables_, num_shards_, sharder),
                OutOfMemory(absl::StrCat("the keys of ", num_ids, " ids"),
                            48 * num_ids));
    OpOutputList requests;
    OpOutputList places;
    OP_REQUIRES_OK(ctx, ctx->output_list("requests", &requests));
    OP_REQUIRES_OK(ctx, ctx->output_list("places", &places));
    for (int shard = 0; shard < requests.size(); ++shard) {
      Tensor* output;
      OP_REQUIRES_OK(
          ctx, requests.allocate(shard, TensorShape({keys.request_size(shard)}),
                                 &output));
      keys.WriteRequest(shard, Data<int64_t>(*output));
    }
    for (int f = 0; f < places.size(); ++f) {
      Tensor* output;
      OP_REQUIRES_OK(ctx, places.allocate(f, ctx->input(f).shape(), &output));
      keys.WritePlaces(f, Data<int32_t>(*output));
    }
  }

 private:
  int64_t num_shards_;
  int64_t num_tables_;
  std::vector<int64_t> table_of_feature_;
};

REGISTER_KERNEL_BUILDER(
    Name("Syncrep>TableRequests").Device(tensorflow::DEVICE_CPU),
    TableRequestsOp);

}  // namespace
}  // namespace tf_syncrep
