/* Safety of the agreement: no two final blocks lie on different branches.

   Validators 0, 1 and 2 are honest and 3 lies: its vote completes every certificate that two honest validators voted
   for, and every slot may have two blocks, whoever leads it. Messages may take any time and any order, and an honest
   validator may stop at any moment, because every step is taken at any later moment or not at all. Votes are on disk
   before they are sent, so a crash forgets none.

   A block is (slot, A or B), with a parent that was certified before; 0 is the start. Bound: SLOTS slots.
   FAULT_SKIP_AFTER_FINALISE: a validator that voted FINALISE may still vote SKIP.
   FAULT_NOTARISE_TWICE: a validator may vote for both blocks of a slot.
   FAULT_SLOT_LEFT_OUT: a block may be built over a slot that has no SKIP certificate. */

#ifndef SLOTS
#define SLOTS 3
#endif
#define BLOCKS (2 * SLOTS)
#define NONE 255

/* Block b (1 to BLOCKS) belongs to slot (b + 1) / 2; its parent is a lower block, 0, or not chosen yet. */
#define SLOT_OF(b) (((b) + 1) / 2)
#define BIT(v) (1 << (v))
#define TWO_OF(set) ((set) == 3 || (set) == 5 || (set) == 6 || (set) == 7)

byte parent[BLOCKS + 1] = NONE;
byte notarised[BLOCKS + 1];   /* sets of honest validators that voted so */
byte finalised[BLOCKS + 1];
byte skipped[SLOTS + 1];

#define CERTIFIED(b) ((b) == 0 || TWO_OF(notarised[b]))
#define FINAL(b) (TWO_OF(finalised[b]))
#define OTHER(b) ((b) % 2 == 1 -> (b) + 1 : (b) - 1)

/* Take one step of any kind by any validator for any block; a step that a rule forbids leaves everything as it is. */
active proctype Chain() {
  byte b, p, s, v, x;
  bool is_allowed;
  do
  :: atomic {
       select(b : 1 .. BLOCKS);
       select(v : 0 .. 2);
       s = SLOT_OF(b);
       if
       :: parent[b] == NONE -> /* a leader proposes block b on parent p */
          select(p : 0 .. BLOCKS);
          is_allowed = SLOT_OF(p) < s && CERTIFIED(p);
#ifndef FAULT_SLOT_LEFT_OUT
          for (x : 1 .. SLOTS) {
            is_allowed = is_allowed && (x <= SLOT_OF(p) || x >= s || TWO_OF(skipped[x]))
          }
#endif
          if :: is_allowed -> parent[b] = p :: else fi
       :: parent[b] != NONE -> /* validator v votes NOTARISE */
#ifdef FAULT_NOTARISE_TWICE
          is_allowed = true;
#else
          is_allowed = !(notarised[OTHER(b)] & BIT(v));
#endif
          if :: is_allowed -> notarised[b] = notarised[b] | BIT(v) :: else fi
       :: true -> /* validator v votes SKIP */
#ifdef FAULT_SKIP_AFTER_FINALISE
          is_allowed = true;
#else
          is_allowed = !((finalised[b] | finalised[OTHER(b)]) & BIT(v));
#endif
          if :: is_allowed -> skipped[s] = skipped[s] | BIT(v) :: else fi
       :: CERTIFIED(b) -> /* validator v votes FINALISE */
          is_allowed = !(finalised[OTHER(b)] & BIT(v)) && !(skipped[s] & BIT(v));
          if :: is_allowed -> finalised[b] = finalised[b] | BIT(v) :: else fi;
          if
          :: FINAL(b) ->
             for (x : 1 .. BLOCKS) {
               p = (x > b -> x : b);
               s = (x > b -> b : x);
               if
               :: FINAL(x) ->
                  do
                  :: p > s -> p = parent[p]
                  :: else -> break
                  od;
                  assert(p == s)
               :: else
               fi
             }
          :: else
          fi
       fi;
       b = 0; p = 0; s = 0; v = 0; x = 0; is_allowed = false
     }
  od
}
