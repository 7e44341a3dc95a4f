// Kernels of the ops that write checkpoints.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/logging.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/kernels/checkpoint_inputs.h"
#include "tf_syncrep/cc/kernels/counted_resource_op.h"
#include "tf_syncrep/cc/tf/checkpoint_writer.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/step_cancellation.h"
#include "tf_syncrep/cc/tf/table_pieces.h"
#include "tf_syncrep/cc/tf/table_snapshot.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DEVICE_CPU;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

// What is stored under a name. TensorFlow's writer does not check this.
struct Stored {
  tensorflow::DataType dtype;
  TensorShape shape;
  std::set<int64_t> firsts;
};

// Checks that each name is that of one array, whose pieces differ.
absl::Status CheckNames(const CheckpointRequest& request) {
  std::map<std::string, Stored> stored;
  const auto error = [](const std::string& name) {
    return absl::InvalidArgumentError(
        absl::StrCat("Variables and tables must have different names, but ",
                     name, " is the name of two variables or tables"));
  };
  for (const TablePiece& piece : request.pieces) {
    const TableSnapshot& table = *request.tables[piece.group];
    const auto uses = static_cast<int>(piece.uses);
    if (uses >= 0 && (table.dtype(uses) != tensorflow::DT_INT32 ||
                      table.row_shape(uses) != TensorShape({2}))) {
      return absl::InvalidArgumentError(
          absl::StrCat("The uses of the rows of ", piece.names[0],
                       " must be int32 of shape [rows, 2], but are ",
                       tensorflow::DataTypeString(table.dtype(uses)),
                       " with rows of ", table.row_shape(uses).DebugString()));
    }
    for (size_t k = 0; k < piece.names.size(); ++k) {
      const int i = static_cast<int>(k);
      const std::string& name = piece.names[k];
      TensorShape shape;
      TF_RETURN_IF_ERROR(piece.StoredShape(table.row_shape(i), &shape));
      Stored& as = stored.try_emplace(name, Stored{table.dtype(i), shape, {}})
                       .first->second;
      if (as.dtype != table.dtype(i) || as.shape != shape ||
          (piece.num_rows > 0 && !as.firsts.insert(piece.first).second)) {
        return error(name);
      }
    }
  }
  for (const auto& [name, tensor] : request.wholes) {
    if (!stored.try_emplace(name, Stored{tensor.dtype(), tensor.shape(), {}})
             .second) {
      return error(name);
    }
  }
  return absl::OkStatus();
}

// Holds a writer, which is cancelled when it is destroyed.
class WriterResource final : public tensorflow::ResourceBase {
 public:
  ~WriterResource() override {
    const absl::Status status = writer_->Cancel();
    if (!status.ok()) {
      LOG(WARNING) << status;
    }
  }

  std::string DebugString() const override { return "CheckpointWriter"; }

  const std::shared_ptr<CheckpointWriter>& writer() const { return writer_; }

 private:
  const std::shared_ptr<CheckpointWriter> writer_ =
      std::make_shared<CheckpointWriter>();
};

class WriterOp final : public CountedResourceOp<WriterResource> {
 public:
  using CountedResourceOp::CountedResourceOp;

 private:
  absl::Status CreateResource(WriterResource** resource) override {
    *resource = new WriterResource;
    return absl::OkStatus();
  }

  absl::Status VerifyResource(WriterResource* /*resource*/) override {
    return absl::OkStatus();
  }
};

// This op writes too, if it can hold the variables. Reference variables cannot
// be held: they exist only as long as a step that uses them, so a step of
// CheckpointWrite writes them.
template <bool kAreHeld>
class BeginOp final : public OpKernel {
 public:
  explicit BeginOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_kept_bytes", &max_kept_bytes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("patience_secs", &patience_secs_));
    OP_REQUIRES(ctx, max_kept_bytes_ > 0 && patience_secs_ > 0,  // NaN is not
                absl::InvalidArgumentError(absl::StrCat(
                    "max_kept_bytes and patience_secs must be positive, but "
                    "are ",
                    max_kept_bytes_, " and ", patience_secs_)));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_bytes_per_sec", &max_bytes_per_sec_));
    OP_REQUIRES(ctx, max_bytes_per_sec_ >= 0,
                absl::InvalidArgumentError(
                    absl::StrCat("max_bytes_per_sec must be positive, or 0 for "
                                 "no bound, but is ",
                                 max_bytes_per_sec_)));
    if (!kAreHeld) {
      OP_REQUIRES_OK(ctx, ctx->GetAttr("owner", &owner_));
    }
  }

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<WriterResource> resource;
    CheckpointRequest request;
    OP_REQUIRES_OK(ctx, LookupHandle(ctx, &resource));
    OP_REQUIRES_OK(ctx, ReadRequest(ctx, &request));
    CheckpointWriter& writer = *resource->writer();
    OP_REQUIRES_OK(ctx, writer.Begin(std::move(request)).status());
    if (kAreHeld) {
      OP_REQUIRES_OK(ctx, writer.Write([] {}).status());
    }
  }

 private:
  absl::Status ReadRequest(OpKernelContext* ctx, CheckpointRequest* request) {
    tstring prefix;
    tstring token;
    tstring base;
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "prefix", &prefix));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "token", &token));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "base", &base));
    request->prefix = prefix;
    request->token = token;
    request->base = base;
    request->owner = owner_;
    request->max_bytes_per_sec = max_bytes_per_sec_;
    request->kept = std::make_shared<KeptBytes>(
        max_kept_bytes_, KeptBytes::Seconds(patience_secs_));
    CheckpointInputs inputs;
    TF_RETURN_IF_ERROR(ReadCheckpointInputs(ctx, &inputs));
    std::vector<int64_t> group_rows;
    for (std::vector<HeldVariable>& group : inputs.groups) {
      absl::StatusOr<std::shared_ptr<TableSnapshot>> table =
          TableSnapshot::Make(std::move(group), request->kept);
      if (!table.ok()) {
        return table.status();
      }
      group_rows.push_back((*table)->num_rows());
      request->tables.push_back(*std::move(table));
    }
    TF_RETURN_IF_ERROR(CheckPieces(inputs.pieces, group_rows));
    request->pieces = std::move(inputs.pieces);
    for (auto& [name, variable] : inputs.wholes) {
      tensorflow::tf_shared_lock lock(*variable->mu());
      if (!variable->tensor()->IsInitialized()) {
        return absl::FailedPreconditionError(
            absl::StrCat("Variable ", name, " is not initialized."));
      }
      Tensor copy;
      TF_RETURN_IF_ERROR(CopyTensor(name, *variable->tensor(), &copy));
      request->wholes.emplace_back(std::move(name), std::move(copy));
    }
    TF_RETURN_IF_ERROR(AddTensors(ctx, request));
    return CheckNames(*request);
  }

  static absl::Status AddTensors(OpKernelContext* ctx,
                                 CheckpointRequest* request) {
    OpInputList tensors;
    std::vector<std::string> names;
    TF_RETURN_IF_ERROR(ctx->input_list("tensors", &tensors));
    TF_RETURN_IF_ERROR(ReadNames(ctx, "tensor_names", tensors.size(), &names));
    for (int i = 0; i < tensors.size(); ++i) {
      if (tensors[i].dtype() == tensorflow::DT_RESOURCE) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensors must have values. Received: a handle for ", names[i]));
      }
      // Some tensors are the buffers of reference variables, which change.
      Tensor copy;
      TF_RETURN_IF_ERROR(CopyTensor(names[i], tensors[i], &copy));
      request->wholes.emplace_back(std::move(names[i]), std::move(copy));
    }
    return absl::OkStatus();
  }

  int64_t max_kept_bytes_;
  float patience_secs_;
  float max_bytes_per_sec_;
  std::string owner_;
};

class WriteOp final : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    tensorflow::core::RefCountPtr<WriterResource> resource;
    OP_REQUIRES_OK_ASYNC(ctx, LookupHandle(ctx, &resource), done);
    const std::shared_ptr<CheckpointWriter> writer = resource->writer();
    const auto cancellation = std::make_shared<StepCancellation>(
        ctx, [writer](int64_t writing) { writer->Stop(writing); });
    const bool is_registered = cancellation->Register();
    const absl::StatusOr<int64_t> writing =
        writer->Write([ctx, done, cancellation] {
          if (!cancellation->Finish()) {
            ctx->SetStatus(StepCancelled());
          }
          RunDone(ctx, done);
        });
    if (!writing.ok()) {
      cancellation->Finish();
      OP_REQUIRES_OK_ASYNC(ctx, writing.status(), done);
    }
    // From here on ctx may be gone.
    cancellation->SetWait(*writing);
    if (!is_registered) {
      writer->Stop(*writing);
    }
  }
};

absl::Status Progress(OpKernelContext* ctx, WriterResource& resource) {
  const CheckpointProgress progress = resource.writer()->Progress();
  TF_RETURN_IF_ERROR(SetScalarOutput<bool>(ctx, 0, progress.done));
  TF_RETURN_IF_ERROR(SetScalarOutput<int64_t>(
      ctx, 1, static_cast<int64_t>(progress.status.code())));
  TF_RETURN_IF_ERROR(
      SetScalarOutput<tstring>(ctx, 2, tstring(progress.status.message())));
  TF_RETURN_IF_ERROR(SetScalarOutput<int64_t>(ctx, 3, progress.bytes));
  TF_RETURN_IF_ERROR(SetScalarOutput<int64_t>(ctx, 4, progress.rows));
  TF_RETURN_IF_ERROR(SetScalarOutput<int64_t>(ctx, 5, progress.kept_peak));
  Tensor* not_finite;
  const auto num = static_cast<int64_t>(progress.not_finite.size());
  TF_RETURN_IF_ERROR(ctx->allocate_output(6, TensorShape({num}), &not_finite));
  std::copy(progress.not_finite.begin(), progress.not_finite.end(),
            not_finite->flat<tstring>().data());
  return absl::OkStatus();
}

absl::Status Cancel(OpKernelContext* /*ctx*/, WriterResource& resource) {
  return resource.writer()->Cancel();
}

template <typename T>
class KeepOp final : public OpKernel {
 public:
  explicit KeepOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("all", &all_));
  }

  void Compute(OpKernelContext* ctx) override {
    VariableRef variable;
    const void* lock = nullptr;
    if (ctx->input_is_ref(0)) {
      lock = ctx->input_ref_mutex(0);
    } else {
      OP_REQUIRES_OK(ctx, LookupHandle(ctx, &variable, "variable"));
      lock = variable->mu();
    }
    const std::vector<std::shared_ptr<TableSnapshot>> snapshots =
        TableSnapshot::Find(lock);
    const Tensor& rows = ctx->input(1);
    const int64_t size = rows.NumElements();
    if (snapshots.empty() || (!all_ && size == 0)) {
      return;
    }
    const auto cancelled = [ctx] { return IsCancelled(ctx); };
    for (const std::shared_ptr<TableSnapshot>& snapshot : snapshots) {
      OP_REQUIRES_OK(ctx, snapshot->Keep(all_ ? nullptr : Data<const T>(rows),
                                         size, cancelled));
    }
  }

 private:
  bool all_;
};

REGISTER_KERNEL_BUILDER(Name("Syncrep>CheckpointWriter").Device(DEVICE_CPU),
                        WriterOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>CheckpointBegin").Device(DEVICE_CPU),
                        BeginOp<true>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>RefCheckpointBegin").Device(DEVICE_CPU),
                        BeginOp<false>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>CheckpointWrite").Device(DEVICE_CPU),
                        WriteOp);
using ProgressOp = CallOp<WriterResource, Progress>;
using CancelOp = CallOp<WriterResource, Cancel>;

REGISTER_KERNEL_BUILDER(Name("Syncrep>CheckpointProgress").Device(DEVICE_CPU),
                        ProgressOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>CheckpointCancel").Device(DEVICE_CPU),
                        CancelOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>CheckpointKeep")
                            .Device(DEVICE_CPU)
                            .TypeConstraint<int32_t>("T"),
                        KeepOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>CheckpointKeep")
                            .Device(DEVICE_CPU)
                            .TypeConstraint<int64_t>("T"),
                        KeepOp<int64_t>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>RefCheckpointKeep")
                            .Device(DEVICE_CPU)
                            .TypeConstraint<int32_t>("T"),
                        KeepOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>RefCheckpointKeep")
                            .Device(DEVICE_CPU)
                            .TypeConstraint<int64_t>("T"),
                        KeepOp<int64_t>);

}  // namespace
}  // namespace tf_syncrep
