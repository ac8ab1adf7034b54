/* Liveness of the time-out rule: a slot is a step, and an adversary decides how it ends where the rule does not.

   Validators 0, 1 and 2 are honest and 3 lies. A time-out covers three delays from level NEEDED on. The slot of an
   honest leader whom all honest validators wait for so long becomes final; every other slot ends as the adversary
   likes: final, notarised but not final, or skipped. At first any validator may hold any other for silent.

   FAULT_NOTARISED_IS_GOOD counts a notarised slot as good for those who did not vote to skip it.
   FAULT_SILENT_UNTIL_FINAL ends a leader's silence with a block of its own instead of any vote. */

#define NEEDED 2
#define LEVEL_MAX 3
#define ROUND 4
#define FAULTY_MAX 1

byte level[3], failed[3], good[3];
bool silent[9];
byte leader;
bool is_final;

#define WAITS(v) (level[v] >= NEEDED && !silent[(v) * 3 + leader])

active proctype Chain() {
  byte v, w;
  bool is_notarised;
  atomic {
    for (v : 0 .. 8) { if :: silent[v] = true :: silent[v] = false fi }
    silent[0] = false; silent[4] = false; silent[8] = false;
    v = 0
  }
  do
  :: atomic {
       is_final = false; is_notarised = false;
       if
       :: leader < 3 && WAITS(0) && WAITS(1) && WAITS(2) -> is_final = true
       :: else -> if :: is_final = true :: is_notarised = true :: true fi
       fi;
       for (v : 0 .. 2) {
         if
         :: is_final ->
            failed[v] = 0; good[v]++;
            if
            :: good[v] >= ROUND ->
               good[v] = 0;
               if :: level[v] > 0 -> level[v]-- :: true fi
            :: else
            fi
#ifdef FAULT_NOTARISED_IS_GOOD
         :: !is_final && is_notarised -> failed[v] = 0
#endif
         :: !is_final && !is_notarised && leader < 3 && silent[v * 3 + leader % 3] -> skip
         :: !is_final && !(!is_notarised && leader < 3 && silent[v * 3 + leader % 3]) ->
            if :: failed[v] <= FAULTY_MAX -> failed[v]++ :: else fi;
            if
            :: failed[v] > FAULTY_MAX ->
               good[v] = 0;
               if :: level[v] < LEVEL_MAX -> level[v]++ :: else fi
            :: else
            fi
         fi
       }
       for (v : 0 .. 8) {
#ifdef FAULT_SILENT_UNTIL_FINAL
         if :: is_final && v % 3 == leader -> silent[v] = false :: else fi
#else
         silent[v] = false
#endif
       }
       v = 0; is_notarised = false; leader = (leader + 1) % 4
     }
  od
}

ltl goes_on { [] <> is_final }
