// Finds rules by name.

#ifndef TF_SYNCREP_CC_LIB_RULES_RULES_H_
#define TF_SYNCREP_CC_LIB_RULES_RULES_H_

#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/rules/adagrad.h"
#include "tf_syncrep/cc/lib/rules/adam_async.h"
#include "tf_syncrep/cc/lib/rules/ftrl.h"
#include "tf_syncrep/cc/lib/rules/rowwise_adagrad.h"
#include "tf_syncrep/cc/lib/rules/sgd.h"

namespace tf_syncrep {

// A new rule is added here, and to rule_loops.cc.
template <typename Slot>
using Rules =
    std::tuple<Adagrad<Slot>, AdamAsync<Slot>, AdamAsyncNesterov<Slot>,
               AdamAsyncRmsprop<Slot>, Ftrl<Slot>, GradientMomentum<Slot>,
               GradientNesterov<Slot>, Momentum<Slot>, Nesterov<Slot>,
               RowwiseAdagrad<Slot>, Sgd<Slot>>;

// The properties of a rule, which rule_loops.h explains.
struct RuleInfo {
  std::string_view name;
  bool is_rowwise;
  bool divides_by_lr;
  std::vector<const char*> slots;
  std::vector<const char*> numbers;
};

template <typename Rule>
RuleInfo InfoOf() {
  return {
      Rule::kName, Rule::kIsRowwise, Rule::kDividesByLr,
      std::vector<const char*>(Rule::kSlots.begin(), Rule::kSlots.end()),
      std::vector<const char*>(Rule::kNumbers.begin(), Rule::kNumbers.end())};
}

// Returns null if there is no rule of that name.
inline const RuleInfo* FindRule(std::string_view name) {
  // It is never destroyed, since kernels may outlive static destruction.
  static const auto* const all = std::apply(
      [](const auto&... rules) {
        return new std::vector<RuleInfo>{
            InfoOf<std::decay_t<decltype(rules)>>()...};
      },
      Rules<float>());
  for (const RuleInfo& info : *all) {
    if (info.name == name) {
      return &info;
    }
  }
  return nullptr;
}

namespace rules_internal {

template <typename Rule, typename Slot, size_t... kIndices>
Rule FromNumbers(const Slot* numbers, std::index_sequence<kIndices...>) {
  return {numbers[kIndices]...};
}

template <typename Rule, typename Slot, typename Visit>
bool VisitIfNamed(std::string_view name, const Slot* numbers,
                  const Visit& visit) {
  if (name != Rule::kName) {
    return false;
  }
  const auto rule = FromNumbers<Rule>(
      numbers, std::make_index_sequence<Rule::kNumbers.size()>());
  if constexpr (std::is_same_v<Rule, Ftrl<Slot>>) {
    if (rule.lr_power == Slot(-0.5)) {
      visit(FromNumbers<FtrlOfRoots<Slot>>(
          numbers, std::make_index_sequence<Rule::kNumbers.size()>()));
      return true;
    }
  }
  visit(rule);
  return true;
}

}  // namespace rules_internal

// Calls `visit` with the rule of that name, which must exist. `numbers` are in
// the rule's order.
template <typename Slot, typename Visit>
void WithRule(std::string_view name, const Slot* numbers, const Visit& visit) {
  std::apply(
      [&](const auto&... rules) {
        static_cast<void>(
            (rules_internal::VisitIfNamed<std::decay_t<decltype(rules)>>(
                 name, numbers, visit) ||
             ...));
      },
      Rules<Slot>());
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_RULES_RULES_H_
