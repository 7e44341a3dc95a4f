// The inputs of the ops that update a variable by a rule.

#ifndef TF_SYNCREP_CC_OPS_RULE_INPUTS_H_
#define TF_SYNCREP_CC_OPS_RULE_INPUTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/lib/rules/rules.h"

namespace tf_syncrep {

inline constexpr int kRuleVar = 0;
inline constexpr const char* kRoundingCount = "rounding_count";

// Checks how many counts of rounding an op has, which come last.
inline absl::Status CheckNumRoundingCounts(int num) {
  if (num > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        kRoundingCount, " must be at most one variable, but there are ", num));
  }
  return absl::OkStatus();
}

// Checks an op's attribute Tslot. `Context` is an InferenceContext or an
// OpKernelConstruction.
template <typename Context>
absl::Status CheckSlotType(Context& context) {
  tensorflow::DataType dtype;
  tensorflow::DataType slot_dtype;
  TF_RETURN_IF_ERROR(context.GetAttr("T", &dtype));
  TF_RETURN_IF_ERROR(context.GetAttr("Tslot", &slot_dtype));
  const tensorflow::DataType expected = dtype == tensorflow::DT_DOUBLE
                                            ? tensorflow::DT_DOUBLE
                                            : tensorflow::DT_FLOAT;
  if (slot_dtype != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("Tslot must be ", tensorflow::DataTypeString(expected),
                     " for T = ", tensorflow::DataTypeString(dtype),
                     ", but is ", tensorflow::DataTypeString(slot_dtype)));
  }
  return absl::OkStatus();
}

// The places of the inputs: var, the rule's slots, the powers of AdamAsync, the
// rule's numbers, grad and, for the sparse op, indices.
struct RuleInputs {
  // Reads the attributes of an op, and checks Tslot.
  template <typename Context>
  static absl::Status Find(Context& context, RuleInputs* inputs) {
    std::string name;
    int64_t num_slots;
    int64_t num_numbers;
    TF_RETURN_IF_ERROR(CheckSlotType(context));
    if (!context.GetAttr("rule", &name).ok()) {
      // All rules of AdamAsync's ops have the same inputs.
      inputs->info = FindRule(AdamAsync<float>::kName);
      inputs->powers = {"beta1_power", "beta2_power"};
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(context.GetAttr("num_slots", &num_slots));
    TF_RETURN_IF_ERROR(context.GetAttr("num_numbers", &num_numbers));
    inputs->info = FindRule(name);
    if (inputs->info == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("rule must be the name of a rule, but is ", name));
    }
    TF_RETURN_IF_ERROR(
        CheckCount(name, "slots", inputs->info->slots, num_slots));
    return CheckCount(name, "numbers", inputs->info->numbers, num_numbers);
  }

  int num_slots() const { return static_cast<int>(info->slots.size()); }
  int num_powers() const { return static_cast<int>(powers.size()); }
  int num_numbers() const { return static_cast<int>(info->numbers.size()); }
  int slot(int i) const { return kRuleVar + 1 + i; }
  int power(int i) const { return slot(num_slots()) + i; }
  int number(int i) const { return power(num_powers()) + i; }
  int grad() const { return number(num_numbers()); }
  int indices() const { return grad() + 1; }

  const RuleInfo* info = nullptr;
  std::vector<const char*> powers;  // their names

 private:
  static absl::Status CheckCount(absl::string_view rule, const char* what,
                                 const std::vector<const char*>& names,
                                 int64_t num) {
    if (num == static_cast<int64_t>(names.size())) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        what, " of rule ", rule, " must be [", absl::StrJoin(names, ", "),
        "], ", names.size(), " in all, but there are ", num));
  }
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_OPS_RULE_INPUTS_H_
