#include "tf_syncrep/cc/tf/table_pieces.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorSlice;
using tensorflow::tstring;

namespace {

constexpr int64_t kNumbers = 6;  // of a piece, in the input

}  // namespace

int64_t TablePiece::RowOf(int64_t id) const {
  if (id < first) {
    return -1;
  }
  const int64_t from_first = id - first;
  const int64_t k = from_first / stride;
  return from_first % stride == 0 && k < num_rows ? begin + k : -1;
}

absl::Status TablePiece::StoredShape(const TensorShape& row_shape,
                                     TensorShape* shape) const {
  *shape = row_shape;
  absl::Status status;
  if (stride > 1) {
    status = shape->InsertDimWithStatus(0, stride);
  }
  if (status.ok()) {
    status = shape->InsertDimWithStatus(0, stored_rows());
  }
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pieces must be of tables that a tensor can hold, but one is of ",
        vocabulary, " rows of ", row_shape.DebugString(), " in ", stride,
        " parts: ", status.message()));
  }
  return absl::OkStatus();
}

TensorSlice TablePiece::StoredSlice(int64_t begin, int64_t end,
                                    int row_dims) const {
  TensorSlice slice(row_dims + (stride > 1 ? 2 : 1));
  slice.set_start(0, begin + (stride > 1 ? 0 : first));
  slice.set_length(0, end - begin);
  if (stride > 1) {
    slice.set_start(1, first);
    slice.set_length(1, 1);
  }
  return slice;
}

std::string TablePiece::ChangedKey(const std::string& name, int64_t chunk,
                                   const char* of) const {
  return absl::StrCat(name, "/changed/", first, "-", chunk, "/", of);
}

absl::Status ReadPieces(tensorflow::OpKernelContext* ctx,
                        const std::vector<int64_t>& group_sizes,
                        std::vector<TablePiece>* pieces) {
  const Tensor* numbers;
  const Tensor* names;
  TF_RETURN_IF_ERROR(ctx->input("pieces", &numbers));
  TF_RETURN_IF_ERROR(ctx->input("piece_names", &names));
  if (numbers->dims() != 2 || numbers->dim_size(1) != kNumbers ||
      names->dims() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pieces must have shape [num, 6] and piece_names must be a vector, but "
        "they have shapes ",
        numbers->shape().DebugString(), " and ", names->shape().DebugString()));
  }
  const auto* const numbers_of_all = Data<const int64_t>(*numbers);
  int64_t num_names = 0;
  int64_t begin = 0;
  for (int64_t i = 0; i < numbers->dim_size(0); ++i) {
    int64_t number[kNumbers];
    for (int64_t k = 0; k < kNumbers; ++k) {
      number[k] = ReadOnce(numbers_of_all + i * kNumbers + k);
    }
    TablePiece piece{number[0], 0,         number[1], number[2],
                     number[3], number[4], number[5], {}};
    const bool is_next =
        !pieces->empty() && pieces->back().group == piece.group;
    piece.begin = begin = is_next ? begin : 0;
    const bool is_piece =
        piece.num_rows >= 0 && piece.vocabulary > 0 && piece.stride > 0 &&
        piece.first >= 0 &&
        (piece.stride == 1
             ? piece.num_rows <= piece.vocabulary - piece.first
             : piece.first < piece.stride &&
                   // The last pieces may have one row less than the others.
                   piece.num_rows ==
                       piece.stored_rows() -
                           (piece.first > (piece.vocabulary - 1) % piece.stride
                                ? 1
                                : 0));
    const bool fits =
        is_piece &&
        piece.num_rows <= std::numeric_limits<int64_t>::max() - begin &&
        piece.group >= 0 &&
        piece.group < static_cast<int64_t>(group_sizes.size()) &&
        piece.uses >= -1 && piece.uses < group_sizes[piece.group] &&
        num_names + group_sizes[piece.group] <= names->NumElements();
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat(
          "pieces[", i,
          "] must be (group, rows, first, stride, vocabulary, uses), "
          "with a name in piece_names for each array of the group, but is (",
          piece.group, ", ", piece.num_rows, ", ", piece.first, ", ",
          piece.stride, ", ", piece.vocabulary, ", ", piece.uses, ")"));
    }
    begin += piece.num_rows;
    for (int64_t k = 0; k < group_sizes[piece.group]; ++k) {
      piece.names.emplace_back(Data<const tstring>(*names)[num_names++]);
    }
    pieces->push_back(std::move(piece));
  }
  return absl::OkStatus();
}

absl::Status CheckPieces(const std::vector<TablePiece>& pieces,
                         const std::vector<int64_t>& group_rows) {
  std::vector<int64_t> covered(group_rows.size());
  for (const TablePiece& piece : pieces) {
    if (piece.begin != covered[piece.group]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "pieces of one group must come one after the other, but those of "
          "group ",
          piece.group, " do not"));
    }
    covered[piece.group] += piece.num_rows;
  }
  for (size_t group = 0; group < group_rows.size(); ++group) {
    if (covered[group] != group_rows[group]) {
      return absl::InvalidArgumentError(
          absl::StrCat("pieces must cover the rows of each group, but of the ",
                       group_rows[group], " rows of group ", group,
                       " they cover ", covered[group]));
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep
