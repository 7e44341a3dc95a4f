"""Defects that the simulator must find; each is put into a copy of cc/lib.

Each is to break another rule. A mutant replaces text that must be in its file exactly
once, so that a change of the file that removes the text is noticed.
"""

from __future__ import annotations

import dataclasses
import pathlib

LIB = pathlib.Path("tf_syncrep") / "cc" / "lib"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A defect, whose name says what is wrong."""

    name: str
    file: str  # below LIB
    replacements: tuple[tuple[str, str], ...]
    # How many events the schedule that shows it has. A gate's pace needs eight steps to
    # learn.
    most_events: int = 30

    def apply(self, root: pathlib.Path) -> str:
        """Returns the file's text with the defect.

        Raises ValueError: a text to be replaced is not there exactly once.
        """
        text = (root / LIB / self.file).read_text()
        for old, new in self.replacements:
            if text.count(old) != 1:
                raise ValueError(
                    f"The mutant {self.name} replaces a text that must be in "
                    f"{self.file} exactly once, and is there {text.count(old)} times. "
                    f"Received: {old!r}"
                )
            text = text.replace(old, new)
        return text


def _mutant(
    name: str, file: str, *replacements: tuple[str, str], most_events: int = 30
) -> Mutant:
    return Mutant(name, file, replacements, most_events)


MUTANTS = [
    # --- The ledger ---
    _mutant(
        "a_commit_counts_twice",
        "gate/ledger.cc",
        (
            "  committed_++;\n  sums_.committed++;",
            "  committed_ += 2;\n  sums_.committed += 2;",
        ),
    ),
    _mutant(
        "giving_up_a_push_does_not_void_the_round",
        "gate/ledger.cc",
        (
            "    VoidRound(why, account);\n  }",
            "    flights_.erase(std::find(flights_.begin(), flights_.end(), "
            "account));\n  }",
        ),
    ),
    _mutant(
        "a_round_admits_more_than_its_quorum",
        "gate/ledger.cc",
        (
            "  return Admits() ? GateAdmission::kAdmitted : GateAdmission::kLate;",
            "  return GateAdmission::kAdmitted;",
        ),
    ),
    _mutant(
        "a_gradient_of_another_round_is_admitted",
        "gate/ledger.cc",
        (
            "if (account != nullptr && IsPresent(generation, round)) {",
            "if (account != nullptr && generation == generation_) {",
        ),
    ),
    _mutant(
        "a_new_generation_keeps_the_round",
        "gate/ledger.cc",
        (
            '    VoidRound("a new generation was opened", nullptr);\n'
            "  } else if (generation_ > 0) {\n    StartRound();\n",
            "  } else if (generation_ > 0) {\n    StartRound();\n",
        ),
    ),
    # --- The gate ---
    _mutant(
        "a_dead_life_is_taken_back",
        "gate/roster.cc",
        (
            "    if (std::find(dead.begin(), dead.end(), worker.incarnation) != "
            "dead.end()) {\n      return nullptr;\n    }\n",
            "",
        ),
    ),
    _mutant(
        "a_permit_is_not_returned_on_cancel",
        "gate/sync_gate.cc",
        (
            '      ledger_.Release("was cancelled", now, &caller->account);\n',
            "",
        ),
    ),
    _mutant(
        "who_waits_is_admitted",
        "gate/sync_gate.cc",
        (" && caller->waiting == 0 &&\n", " &&\n"),
    ),
    _mutant(
        "spares_in_strict_mode",
        "gate/sync_gate_waits.cc",
        (
            "  return IsOpen() && spares_ && !strict_ && ledger_.Admits()",
            "  return IsOpen() && spares_ && ledger_.Admits()",
        ),
        most_events=45,
    ),
    _mutant(
        "who_does_not_come_is_waited_for",
        "gate/roster.cc",
        (" && now < opened_at_ + lease_;", ";"),
    ),
    _mutant(
        "a_flush_does_not_wait_for_pushes",
        "gate/sync_gate_waits.cc",
        (
            "    case UpdaterWait::Kind::kFlush:\n"
            "      if (ledger_.in_flight() > 0) {\n        return false;\n      }\n",
            "    case UpdaterWait::Kind::kFlush:\n",
        ),
    ),
    _mutant(
        "a_deleted_gate_is_opened",
        "gate/sync_gate.cc",
        (
            "    if (shut_down_) {\n      return ledger_.generation();\n    }\n",
            "",
        ),
    ),
    # --- Leases ---
    _mutant(
        "an_updater_that_waits_is_silent",
        "gate/sync_gate_waits.cc",
        (
            "      updater_seen_ = std::max(updater_seen_, "
            "std::min(now, wait.deadline));\n",
            "",
        ),
    ),
    _mutant(
        "a_long_silence_is_not_learnt",
        "gate/roster.cc",
        (
            "(member.started ? std::max(lease_, 2 * longest) : first_step_lease);",
            "(member.started ? lease_ + 0 * longest : first_step_lease);",
        ),
    ),
    # --- The accumulators ---
    _mutant(
        "a_stale_push_is_accepted",
        "accumulator.cc",
        ("  if (step >= step_) {\n", "  if (step >= 0) {\n"),
    ),
    _mutant(
        "a_take_ignores_the_round",
        "accumulator.cc",
        (
            "  if (round != step_ || num_gradients != num_held_",
            "  if (num_gradients != num_held_",
        ),
    ),
    # --- A replica in the chief's process ---
    _mutant(
        "a_failed_update_does_not_end_its_replicas_wait",
        "gate/sync_gate.cc",
        (
            "          EndAcquire(queue_.ExtractAcquire(failed->waiting), "
            "UpdaterFailed(),\n                     {}, &wakeups);\n",
            "          static_cast<void>(failed);\n",
        ),
    ),
    # --- The work queue ---
    _mutant(
        "what_a_dead_worker_had_is_not_given_back",
        "work_queue.cc",
        ("    GiveBackAll(worker.device);\n", ""),
    ),
    _mutant(
        "a_dead_worker_is_handed_out_items",
        "work_queue.cc",
        ("    life.over.insert(life.incarnation);\n", ""),
    ),
    _mutant(
        "a_lost_answer_ends_its_item",
        "work_queue.cc",
        ("} else if (last == held->second.grant.ticket) {", "} else if (last > 0) {"),
    ),
    _mutant(
        "what_is_being_read_is_not_saved",
        "work_queue.cc",
        ("    waiting.insert(held.grant.item);\n", ""),
    ),
    _mutant(
        "nobody_waits_for_the_last_items",
        "work_queue.cc",
        ("  return is_end_of_all && !held_.empty() && !reads_on;", "  return false;"),
    ),
    _mutant(
        "readers_of_one_worker_wait_for_each_other",
        "work_queue.cc",
        (" && !held_.empty() && !reads_on;", " && !held_.empty();"),
    ),
    # --- Tables that grow ---
    _mutant(
        "a_gradient_is_not_checked_for_its_key",
        "table/dynamic_table.cc",
        (
            "columns.use(row).is_in_use() &&\n"
            "                         columns.key(row) == ReadOnce(&keys[i]);",
            "columns.use(row).is_in_use();",
        ),
    ),
    _mutant(
        "a_row_is_free_without_a_rest",
        "table/dynamic_table.cc",
        (
            "  columns.set_use(row, {RowUse::kRests, 0});",
            "  columns.set_use(row, {0, 0});",
        ),
        ("    resting_.push_back(row);\n  }", "    PushFree(&row, 1);\n  }"),
    ),
    _mutant(
        "a_row_that_is_used_meanwhile_is_evicted",
        "table/dynamic_table.cc",
        ("          !IsTaken(eviction, columns.use(row)) ||\n", ""),
    ),
    _mutant(
        "a_key_that_has_got_a_row_gets_another",
        "table/dynamic_table.cc",
        (
            "        row = segment.Find(asked.hash, asked.key, columns.keys());\n"
            "        if (row >= 0) {\n"
            "          columns.set_use(row, UsedOnceMore(columns.use(row), "
            "use.last_use));",
            "        if (row >= 0) {\n"
            "          columns.set_use(row, UsedOnceMore(columns.use(row), "
            "use.last_use));",
        ),
    ),
    _mutant(
        "a_row_for_a_key_that_has_got_another_is_lost",
        "table/dynamic_table.cc",
        ("      PushFree(&free_rows[i], 1);\n", ""),
    ),
    _mutant(
        "what_was_taken_before_a_restore_is_given_back_after_it",
        "table/dynamic_table.cc",
        (
            "  if (build == build_) {\n    PushFree(rows, size);",
            "  if (build >= 0) {\n    PushFree(rows, size);",
        ),
    ),
    _mutant(
        "a_row_keeps_the_vector_of_the_key_before",
        "table/new_rows.cc",
        ("            initial.Draw(keys_[i], width, vectors + row * width);\n", ""),
    ),
    _mutant(
        "a_maintenance_does_not_wait_for_lookups",
        "table/table_maintenance.cc",
        (
            "        phase_ = Phase::kSettle;\n        return Next::kWait;\n",
            "        phase_ = Phase::kSettle;\n        break;\n",
        ),
    ),
    _mutant(
        "a_maintenance_that_fails_loses_rows_that_rest",
        "table/table_maintenance.cc",
        ("  PutBackResting();\n  if (has_begun_)", "  if (has_begun_)"),
    ),
]
