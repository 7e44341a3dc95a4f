// Kernel of the op that reads checkpoints.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tensorflow/core/framework/numeric_types.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf_syncrep/cc/kernels/checkpoint_inputs.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::BundleReader;
using tensorflow::DataType;
using tensorflow::DataTypeString;
using tensorflow::DEVICE_CPU;
using tensorflow::Env;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorSlice;
using tensorflow::tstring;

constexpr char kChanged[] = "/changed/";

absl::Status Lookup(BundleReader& reader, const std::string& key,
                    DataType dtype, Tensor* tensor) {
  DataType stored;
  TensorShape shape;
  TF_RETURN_IF_ERROR(reader.LookupDtypeAndShape(key, &stored, &shape));
  if (stored != dtype) {
    return absl::DataLossError(absl::StrCat(key, " must be ",
                                            DataTypeString(dtype), ", but is ",
                                            DataTypeString(stored)));
  }
  TF_RETURN_IF_ERROR(NewTensor(key, dtype, shape, tensor));
  return reader.Lookup(key, tensor);
}

// A chunk of a table's rows that have changed.
struct Chunk {
  std::string name;
  int64_t first;  // the first row of the piece that the chunk belongs to
};

absl::Status FindChunks(BundleReader& reader, const std::string& table,
                        std::vector<Chunk>* chunks) {
  const std::string begin = table + kChanged;
  for (reader.Seek(begin); reader.Valid(); reader.Next()) {
    absl::string_view key(reader.key().data(), reader.key().size());
    if (!absl::ConsumePrefix(&key, begin)) {
      break;
    }
    if (!absl::ConsumeSuffix(&key, "/ids")) {
      continue;
    }
    int64_t first;
    const auto parsed =
        std::from_chars(key.data(), key.data() + key.size(), first);
    if (parsed.ec != std::errc()) {
      return absl::DataLossError(
          absl::StrCat(begin, key, " must begin with the number of a row"));
    }
    chunks->push_back({std::string(key), first});
  }
  return absl::OkStatus();
}

// Leaves out chunks that cannot have rows of a piece, if the table is split
// among `stored_shards` in the checkpoint.
void DropChunksOfOthers(const TablePiece& piece, int64_t stored_shards,
                        std::vector<Chunk>* chunks) {
  std::vector<int64_t> firsts;
  for (const Chunk& chunk : *chunks) {
    firsts.push_back(chunk.first);
  }
  std::sort(firsts.begin(), firsts.end());
  const int64_t common = std::gcd(piece.stride, stored_shards);
  const auto is_of_others = [&](const Chunk& chunk) {
    if (stored_shards == 1 && piece.stride == 1) {
      // Each chunk belongs to a range of rows, which ends where the next one
      // begins, or earlier.
      const auto next =
          std::upper_bound(firsts.begin(), firsts.end(), chunk.first);
      return chunk.first >= piece.first + piece.num_rows ||
             (next != firsts.end() && *next <= piece.first);
    }
    return (chunk.first - piece.first) % common != 0;
  };
  chunks->erase(std::remove_if(chunks->begin(), chunks->end(), is_of_others),
                chunks->end());
}

// Writes elements of one dtype as those of another one.
using Convert = void(const char* from, int64_t num, char* to);

template <typename From, typename To>
void ConvertAll(const char* from, int64_t num, char* to) {
  using Wide = std::conditional_t<std::is_same_v<From, double>, double, float>;
  for (int64_t i = 0; i < num; ++i) {
    const auto wide = static_cast<Wide>(reinterpret_cast<const From*>(from)[i]);
    const auto value = static_cast<To>(wide);
    std::memcpy(to + i * sizeof(To), &value, sizeof(To));
  }
}

template <typename From>
Convert* ConverterFrom(DataType to) {
  switch (to) {
    case tensorflow::DT_HALF:
      return &ConvertAll<From, Eigen::half>;
    case tensorflow::DT_BFLOAT16:
      return &ConvertAll<From, Eigen::bfloat16>;
    case tensorflow::DT_FLOAT:
      return &ConvertAll<From, float>;
    case tensorflow::DT_DOUBLE:
      return &ConvertAll<From, double>;
    default:
      return nullptr;
  }
}

// Returns what converts one floating dtype to another; null if one is none.
Convert* Converter(DataType from, DataType to) {
  switch (from) {
    case tensorflow::DT_HALF:
      return ConverterFrom<Eigen::half>(to);
    case tensorflow::DT_BFLOAT16:
      return ConverterFrom<Eigen::bfloat16>(to);
    case tensorflow::DT_FLOAT:
      return ConverterFrom<float>(to);
    case tensorflow::DT_DOUBLE:
      return ConverterFrom<double>(to);
    default:
      return nullptr;
  }
}

// One array of a table: a variable, and the rows of a piece in it.
class PieceArray {
 public:
  // `stored_rows`: how many rows the table has in the checkpoint, if it may
  // have others than the model's, and its values are converted; otherwise -1.
  // `group_rows`: of the group's first array, which the pieces cover.
  PieceArray(const TablePiece& piece, int64_t stored_rows, int64_t group_rows,
             HeldVariable* variable, std::string name)
      : piece_(piece),
        stored_vocabulary_(stored_rows < 0 ? piece.vocabulary : stored_rows),
        converts_(stored_rows >= 0),
        variable_(variable),
        name_(std::move(name)) {
    const tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& tensor = *variable->tensor();
    has_rows_ = tensor.IsInitialized() && tensor.dims() > 0 &&
                tensor.dim_size(0) == group_rows;
    dtype_ = tensor.dtype();
    shape_ = tensor.shape();
    row_shape_ = shape_;
    if (row_shape_.dims() > 0) {
      // Where there are no rows, a row may have any size.
      has_rows_ = row_shape_.RemoveDimWithStatus(0).ok() && has_rows_;
    }
    row_elements_ = row_shape_.num_elements();
    row_bytes_ = row_elements_ * tensorflow::DataTypeSize(dtype_);
    stored_dtype_ = dtype_;
    stored_row_bytes_ = row_bytes_;
  }

  // Without a name the array stays as it is.
  bool is_read() const { return !name_.empty(); }

  // Checks the array in a full checkpoint, and finds out how the table is split
  // there.
  absl::Status Check(BundleReader& reader) {
    if (!has_rows_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "The arrays of a table must be initialized, and have equally many "
          "rows. Received: ",
          name_, " of shape ", shape_.DebugString()));
    }
    if (!is_read()) {
      return absl::OkStatus();
    }
    TensorShape stored;
    TF_RETURN_IF_ERROR(
        reader.LookupDtypeAndShape(name_, &stored_dtype_, &stored));
    const int more_dims = stored.dims() - row_shape_.dims();
    stored_shards_ = more_dims == 2 ? stored.dim_size(1) : 1;
    TablePiece as_stored = piece_;
    as_stored.stride = std::max<int64_t>(1, stored_shards_);
    as_stored.vocabulary = stored_vocabulary_;
    TensorShape expected;
    TF_RETURN_IF_ERROR(as_stored.StoredShape(row_shape_, &expected));
    const bool is_like_own = stored_dtype_ == dtype_ &&
                             tensorflow::DataTypeCanUseMemcpy(stored_dtype_);
    convert_ =
        converts_ && !is_like_own ? Converter(stored_dtype_, dtype_) : nullptr;
    if (!(is_like_own || convert_ != nullptr) || stored != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          name_, " is ", DataTypeString(stored_dtype_), stored.DebugString(),
          " in the checkpoint, where the model has a table of ",
          stored_vocabulary_, " rows of ", DataTypeString(dtype_),
          row_shape_.DebugString()));
    }
    stored_row_bytes_ = row_elements_ * tensorflow::DataTypeSize(stored_dtype_);
    return absl::OkStatus();
  }

  absl::Status ReadFull(BundleReader& reader, int64_t* bytes) {
    std::vector<TensorSlice> slices;
    TF_RETURN_IF_ERROR(reader.LookupTensorSlices(name_, &slices));
    if (slices.empty()) {  // The array is stored as a whole.
      slices.emplace_back(row_shape_.dims() + (stored_shards_ > 1 ? 2 : 1));
    }
    const int64_t stored_rows =
        (stored_vocabulary_ + stored_shards_ - 1) / stored_shards_;
    for (const TensorSlice& slice : slices) {
      const Part part = {
          slice.IsFullAt(0) ? 0 : slice.start(0),
          slice.IsFullAt(0) ? stored_rows : slice.length(0),
          stored_shards_ == 1 || slice.IsFullAt(1) ? 0 : slice.start(1),
          stored_shards_ == 1 || slice.IsFullAt(1) ? stored_shards_
                                                   : slice.length(1)};
      if (!HasOurs(part)) {
        continue;
      }
      TensorShape shape = row_shape_;
      if (stored_shards_ > 1) {
        TF_RETURN_IF_ERROR(shape.InsertDimWithStatus(0, part.num_shards));
      }
      TF_RETURN_IF_ERROR(shape.InsertDimWithStatus(0, part.num_rows));
      Tensor values;
      TF_RETURN_IF_ERROR(NewTensor(name_, stored_dtype_, shape, &values));
      TF_RETURN_IF_ERROR(reader.LookupSlice(name_, slice, &values));
      TF_RETURN_IF_ERROR(Copy(part, values));
      *bytes += static_cast<int64_t>(values.TotalBytes());
    }
    return absl::OkStatus();
  }

  // Reads the changed rows in one chunk of a writer, and copies rows `from` of
  // them to rows `to` of the variable.
  absl::Status ReadChunk(BundleReader& reader, const std::string& chunk,
                         int64_t num_rows, const std::vector<int64_t>& from,
                         const std::vector<int64_t>& to, int64_t* bytes) {
    const std::string key = absl::StrCat(name_, kChanged, chunk, "/rows");
    Tensor rows;
    TF_RETURN_IF_ERROR(Lookup(reader, key, stored_dtype_, &rows));
    const auto size = static_cast<int64_t>(rows.TotalBytes());
    if (size != num_rows * stored_row_bytes_) {
      return absl::DataLossError(
          absl::StrCat(key, " must have ", num_rows,
                       " rows, as many as numbers of rows, but has ", size,
                       " bytes of rows of ", stored_row_bytes_));
    }
    *bytes += size;
    const std::lock_guard<VariableMutex> lock(*variable_->mu());
    char* data = nullptr;
    TF_RETURN_IF_ERROR(Writable(&data));
    for (size_t i = 0; i < from.size(); ++i) {
      CopyRows(
          static_cast<const char*>(rows.data()) + from[i] * stored_row_bytes_,
          1, data + to[i] * row_bytes_);
    }
    return absl::OkStatus();
  }

  // How many shards the table has in the full checkpoint.
  int64_t stored_shards() const { return stored_shards_; }

 private:
  // Rows [begin, begin + num_rows) of each of some shards, as they are stored.
  struct Part {
    int64_t begin;
    int64_t num_rows;
    int64_t first_shard;
    int64_t num_shards;
  };

  bool HasOurs(const Part& part) const {
    if (piece_.stride == 1 && stored_shards_ == 1) {
      return part.begin < piece_.first + piece_.num_rows &&
             part.begin + part.num_rows > piece_.first;
    }
    // If the piece and the stored shards have rows in common, they have one
    // among that many stored rows, or among all if the piece is a range.
    const int64_t enough = piece_.stride == 1
                               ? part.num_rows
                               : std::min(part.num_rows, piece_.stride);
    for (int64_t i = 0; i < enough; ++i) {
      for (int64_t s = 0; s < part.num_shards; ++s) {
        if (piece_.RowOf((part.begin + i) * stored_shards_ + part.first_shard +
                         s) >= 0) {
          return true;
        }
      }
    }
    return false;
  }

  // Returns the variable's elements, for writing. The caller must hold its
  // lock.
  absl::Status Writable(char** data) {
    Tensor* const tensor = variable_->tensor();
    if (!tensor->IsInitialized() || tensor->shape() != shape_ ||
        tensor->dtype() != dtype_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "The variable of ", name_, " got another shape while it was read"));
    }
    if (!variable_->is_written_in_place() &&
        !tensor->RefCountIsOne()) {  // somebody reads it
      Tensor copy;
      TF_RETURN_IF_ERROR(CopyTensor(name_, *tensor, &copy));
      *tensor = std::move(copy);
    }
    *data = static_cast<char*>(tensor->data());
    return absl::OkStatus();
  }

  absl::Status Copy(const Part& part, const Tensor& values) {
    const std::lock_guard<VariableMutex> lock(*variable_->mu());
    char* data = nullptr;
    TF_RETURN_IF_ERROR(Writable(&data));
    const auto* from = static_cast<const char*>(values.data());
    if (stored_shards_ == piece_.stride && part.num_shards == 1) {
      // Rows of the piece are next to each other in the stored shard, too.
      const int64_t first = piece_.stride == 1 ? piece_.first : 0;
      const int64_t begin = std::max(part.begin - first, int64_t{0});
      // Behind the last row of the table there may be padding.
      const int64_t stored_rows =
          stored_vocabulary_ <= piece_.first
              ? 0
              : (stored_vocabulary_ - 1 - piece_.first) / piece_.stride + 1;
      const int64_t end = std::min(
          {part.begin + part.num_rows - first, piece_.num_rows, stored_rows});
      if (begin < end) {
        CopyRows(from + (begin + first - part.begin) * stored_row_bytes_,
                 end - begin, data + (piece_.begin + begin) * row_bytes_);
      }
      return absl::OkStatus();
    }
    for (int64_t i = 0; i < part.num_rows; ++i) {
      for (int64_t s = 0; s < part.num_shards; ++s, from += stored_row_bytes_) {
        const int64_t id =
            (part.begin + i) * stored_shards_ + part.first_shard + s;
        const int64_t row = id < stored_vocabulary_ ? piece_.RowOf(id) : -1;
        if (row >= 0) {
          CopyRows(from, 1, data + row * row_bytes_);
        }
      }
    }
    return absl::OkStatus();
  }

  void CopyRows(const char* from, int64_t num, char* to) const {
    if (convert_ != nullptr) {
      convert_(from, num * row_elements_, to);
    } else {
      std::memcpy(to, from, num * row_bytes_);
    }
  }

  const TablePiece& piece_;
  const int64_t stored_vocabulary_;
  const bool converts_;
  HeldVariable* const variable_;
  const std::string name_;
  bool has_rows_;
  DataType dtype_;
  TensorShape shape_;
  TensorShape row_shape_;
  int64_t row_elements_;
  int64_t row_bytes_;
  DataType stored_dtype_;
  int64_t stored_row_bytes_;
  Convert* convert_ = nullptr;
  int64_t stored_shards_ = 1;
};

class RestoreOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    CheckpointInputs inputs;
    OP_REQUIRES_OK(ctx, ReadCheckpointInputs(ctx, &inputs));
    const Tensor* prefixes;
    OP_REQUIRES_OK(ctx, ctx->input("prefixes", &prefixes));
    OP_REQUIRES(ctx, prefixes->dims() == 1 && prefixes->NumElements() > 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "prefixes must be a vector of at least one, but has shape ",
                    prefixes->shape().DebugString())));
    const Tensor* stored_rows;
    OP_REQUIRES_OK(ctx, ctx->input("stored_rows", &stored_rows));
    const auto num_pieces = static_cast<int64_t>(inputs.pieces.size());
    OP_REQUIRES(
        ctx,
        stored_rows->dims() == 1 && (stored_rows->NumElements() == 0 ||
                                     stored_rows->NumElements() == num_pieces),
        absl::InvalidArgumentError(absl::StrCat(
            "stored_rows must be a vector of none, or of one for each "
            "of the ",
            num_pieces, " pieces, but has shape ",
            stored_rows->shape().DebugString())));
    std::vector<int64_t> stored(num_pieces, -1);
    for (int64_t i = 0; i < stored_rows->NumElements(); ++i) {
      stored[i] = ReadOnce(Data<const int64_t>(*stored_rows) + i);
      OP_REQUIRES(
          ctx, stored[i] > 0,
          absl::InvalidArgumentError(absl::StrCat(
              "stored_rows[", i, "] must be positive, but is ", stored[i])));
    }
    int64_t bytes = 0;
    try {
      OP_REQUIRES_OK(ctx, Restore(inputs, *prefixes, stored, &bytes));
      // thrown by TensorFlow's reader for its buffers
    } catch (const std::bad_alloc&) {
      ctx->CtxFailure(absl::ResourceExhaustedError(
          "There is no memory to read the checkpoint"));
      return;
    }
    OP_REQUIRES_OK(ctx, SetScalarOutput<int64_t>(ctx, 0, bytes));
  }

 private:
  static absl::Status Restore(CheckpointInputs& inputs, const Tensor& prefixes,
                              const std::vector<int64_t>& stored_rows,
                              int64_t* bytes) {
    std::vector<int64_t> group_rows;
    for (std::vector<HeldVariable>& group : inputs.groups) {
      const tensorflow::tf_shared_lock lock(*group[0].mu());
      const Tensor& tensor = *group[0].tensor();
      group_rows.push_back(tensor.dims() > 0 ? tensor.dim_size(0) : 0);
    }
    TF_RETURN_IF_ERROR(CheckPieces(inputs.pieces, group_rows));
    std::vector<std::unique_ptr<BundleReader>> readers;
    for (int64_t i = 0; i < prefixes.NumElements(); ++i) {
      readers.push_back(std::make_unique<BundleReader>(
          Env::Default(), std::string(Data<const tstring>(prefixes)[i])));
      TF_RETURN_IF_ERROR(readers.back()->status());
    }
    std::vector<std::vector<PieceArray>> arrays;
    for (size_t p = 0; p < inputs.pieces.size(); ++p) {
      const TablePiece& piece = inputs.pieces[p];
      arrays.emplace_back();
      for (size_t k = 0; k < piece.names.size(); ++k) {
        HeldVariable& variable = inputs.groups[piece.group][k];
        arrays.back().emplace_back(piece, stored_rows[p],
                                   group_rows[piece.group], &variable,
                                   piece.names[k]);
      }
    }
    // Nothing is written before everything is known to fit.
    for (std::vector<PieceArray>& of_piece : arrays) {
      for (PieceArray& array : of_piece) {
        TF_RETURN_IF_ERROR(array.Check(*readers.front()));
      }
    }
    for (const auto& [name, variable] : inputs.wholes) {
      TF_RETURN_IF_ERROR(CheckWhole(*readers.back(), name, variable.get()));
    }
    for (size_t p = 0; p < arrays.size(); ++p) {
      if (!arrays[p][0].is_read()) {
        continue;
      }
      for (PieceArray& array : arrays[p]) {
        if (array.is_read()) {
          TF_RETURN_IF_ERROR(array.ReadFull(*readers.front(), bytes));
        }
      }
      for (size_t i = 1; i < readers.size(); ++i) {
        TF_RETURN_IF_ERROR(
            ReadChanged(*readers[i], inputs.pieces[p], arrays[p], bytes));
      }
    }
    for (const auto& [name, variable] : inputs.wholes) {
      TF_RETURN_IF_ERROR(
          ReadWhole(*readers.back(), name, variable.get(), bytes));
    }
    return absl::OkStatus();
  }

  static absl::Status ReadChanged(BundleReader& reader, const TablePiece& piece,
                                  std::vector<PieceArray>& arrays,
                                  int64_t* bytes) {
    std::vector<Chunk> chunks;
    TF_RETURN_IF_ERROR(FindChunks(reader, piece.names[0], &chunks));
    DropChunksOfOthers(piece, arrays[0].stored_shards(), &chunks);
    for (const Chunk& chunk : chunks) {
      const std::string key =
          absl::StrCat(piece.names[0], kChanged, chunk.name, "/ids");
      Tensor ids;
      TF_RETURN_IF_ERROR(Lookup(reader, key, tensorflow::DT_INT64, &ids));
      *bytes += static_cast<int64_t>(ids.TotalBytes());
      std::vector<int64_t> from;
      std::vector<int64_t> to;
      for (int64_t i = 0; i < ids.NumElements(); ++i) {
        const int64_t row = piece.RowOf(Data<const int64_t>(ids)[i]);
        if (row >= 0) {
          from.push_back(i);
          to.push_back(row);
        }
      }
      for (size_t k = 0; !from.empty() && k < arrays.size(); ++k) {
        if (arrays[k].is_read()) {
          TF_RETURN_IF_ERROR(arrays[k].ReadChunk(
              reader, chunk.name, ids.NumElements(), from, to, bytes));
        }
      }
    }
    return absl::OkStatus();
  }

  static absl::Status CheckWhole(BundleReader& reader, const std::string& name,
                                 tensorflow::Var* variable) {
    DataType dtype;
    TensorShape shape;
    TF_RETURN_IF_ERROR(reader.LookupDtypeAndShape(name, &dtype, &shape));
    const tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& tensor = *variable->tensor();
    if (tensor.IsInitialized() &&
        (tensor.dtype() != dtype || tensor.shape() != shape)) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " is ", DataTypeString(dtype), shape.DebugString(),
          " in the checkpoint, where the model has ",
          DataTypeString(tensor.dtype()), tensor.shape().DebugString()));
    }
    return absl::OkStatus();
  }

  static absl::Status ReadWhole(BundleReader& reader, const std::string& name,
                                tensorflow::Var* variable, int64_t* bytes) {
    DataType dtype;
    TensorShape shape;
    TF_RETURN_IF_ERROR(reader.LookupDtypeAndShape(name, &dtype, &shape));
    Tensor values;
    TF_RETURN_IF_ERROR(NewTensor(name, dtype, shape, &values));
    TF_RETURN_IF_ERROR(reader.Lookup(name, &values));
    *bytes += static_cast<int64_t>(values.TotalBytes());
    const std::lock_guard<VariableMutex> lock(*variable->mu());
    *variable->tensor() = std::move(values);
    variable->is_initialized = true;
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("Syncrep>CheckpointRestore").Device(DEVICE_CPU),
                        RestoreOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>RefCheckpointRestore").Device(DEVICE_CPU),
                        RestoreOp);

}  // namespace
}  // namespace tf_syncrep
