#include "tests/simulator/twin.h"

#include <cstring>
#include <utility>

namespace tf_syncrep::simulator {
namespace {

// Compares bit by bit.
bool AreSame(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

// A small whole number that distinguishes weights, almost always.
double Digest(const Weights& weights) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const double weight : weights) {
    uint64_t bits = 0;
    std::memcpy(&bits, &weight, sizeof(bits));
    digest = (digest ^ bits) * 0x100000001b3;
    digest ^= digest >> 29;
  }
  return static_cast<double>(digest % 1021);
}

}  // namespace

Gradient MakeGradient(int64_t number, int variable, bool sparse,
                      const Weights& read) {
  // Different sets of these have different sums, and all sums are exact in a
  // double.
  const auto name = static_cast<double>(int64_t{1} << (number % 40));
  Gradient gradient;
  for (int row = 0; row < kNumRows; ++row) {
    if (sparse && (number + variable + row) % 3 == 0) {
      continue;
    }
    if (sparse) {
      gradient.rows.insert(gradient.rows.begin(), row);
    }
    gradient.values.push_back(name);
    gradient.values.push_back(Digest(read) + row);
  }
  return gradient;
}

Gradient MeanOf(const std::vector<const Gradient*>& gradients, bool sparse) {
  std::map<int64_t, int64_t> counts;
  std::map<int64_t, std::vector<double>> sums;
  for (const Gradient* gradient : gradients) {
    for (size_t i = 0; i * kRowSize < gradient->values.size(); ++i) {
      const int64_t row = sparse ? gradient->rows[i] : static_cast<int64_t>(i);
      std::vector<double>& sum = sums[row];
      sum.resize(kRowSize);
      for (int j = 0; j < kRowSize; ++j) {
        sum[j] += gradient->values[i * kRowSize + j];
      }
      ++counts[row];
    }
  }
  Gradient mean;
  for (const auto& [row, sum] : sums) {
    if (sparse) {
      mean.rows.push_back(row);
    }
    for (const double value : sum) {
      mean.values.push_back(value / static_cast<double>(counts[row]));
    }
  }
  return mean;
}

void ApplyMean(const Gradient& mean, bool sparse, Weights* weights) {
  for (size_t i = 0; i * kRowSize < mean.values.size(); ++i) {
    const size_t row = sparse ? mean.rows[i] : i;
    for (int j = 0; j < kRowSize; ++j) {
      (*weights)[row * kRowSize + j] -= mean.values[i * kRowSize + j];
    }
  }
}

Twin::Twin(int num_variables, bool last_is_sparse)
    : last_is_sparse_(last_is_sparse),
      weights_(num_variables, Weights(kNumRows * kRowSize)),
      updated_(num_variables),
      is_undone_(num_variables) {}

void Twin::Commit(int64_t round,
                  std::shared_ptr<const Contribution> contribution) {
  committed_[round].push_back(std::move(contribution));
}

void Twin::Take(int variable, int64_t round, const Gradient& mean,
                const Weights& after) {
  const std::string what = "variable " + std::to_string(variable) +
                           " in round " + std::to_string(round);
  std::vector<const Gradient*> gradients;
  for (const auto& contribution : committed_[round]) {
    if (!AreSame(contribution->read[variable], weights_[variable])) {
      Fail("a gradient that counts was computed on other weights: " + what);
    }
    gradients.push_back(&contribution->gradients[variable]);
  }
  if (!updated_[variable].empty()) {
    Fail("an update is made twice: " + what);
  }
  const bool sparse = IsSparse(variable);
  const Gradient expected = MeanOf(gradients, sparse);
  if (!AreSame(mean.values, expected.values) || mean.rows != expected.rows) {
    Fail("the mean that is applied is not that of the " +
         std::to_string(gradients.size()) +
         " gradients that the gate has counted: " + what);
  }
  Weights updated = weights_[variable];
  ApplyMean(expected, sparse, &updated);
  if (!AreSame(after, updated)) {
    Fail("the weights differ from the twin's: " + what);
  }
  updated_[variable] = std::move(updated);
}

void Twin::Advance(int64_t round) {
  for (size_t v = 0; v < weights_.size(); ++v) {
    if (updated_[v].empty() && !is_undone_[v]) {
      Fail("round " + std::to_string(round) +
           " ends by an update that variable " + std::to_string(v) +
           " was not part of");
      return;
    }
    EndUpdate(v);
  }
  ++updates_;
  committed_.clear();
}

void Twin::Open() {
  for (size_t v = 0; v < weights_.size(); ++v) {
    EndUpdate(v);
  }
  committed_.clear();
}

void Twin::EndUpdate(size_t variable) {
  if (!updated_[variable].empty()) {
    weights_[variable] = std::move(updated_[variable]);
    updated_[variable].clear();
  }
  is_undone_[variable] = false;
}

void Twin::Restore(int variable, const Weights& weights) {
  weights_[variable] = weights;
  is_undone_[variable] = is_undone_[variable] || !updated_[variable].empty();
  updated_[variable].clear();
}

void Twin::Fail(const std::string& error) {
  if (error_.empty()) {
    error_ = error;
  }
}

}  // namespace tf_syncrep::simulator
