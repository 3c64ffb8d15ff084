/*
 * The protocol of one row, for SPIN: two runs, a database, an upstream and time. Every state is looked at.
 *
 * What it shows. While a run works an account nobody else does (P1), and whoever lost the lease writes nothing (P4),
 * although runs crash and are frozen anywhere, statements and requests are under way for as long as they like, and
 * one that was sent is carried out even when its sender has died or given it up.
 *
 * What the lease argument needs from clocks, and nothing more:
 *   - the database's clock and a run's monotonic clock go at the same rate, or the run's goes faster (SLOW_CLOCK);
 *   - the run reads its clock before it asks (CLOCK_READ_AFTER), so that its lease ends first;
 *   - a live run acts on its deadline in time: it lets no tick pass while it works beyond the lease (NO_DEADLINE);
 *   - it is not frozen between its last look at the clock and its send (FROZEN_BEFORE_SEND).
 * What no clock can give: the fence (NO_FENCE), because a statement may be under way for longer than the lease; and
 * that status and lease are stamped by one statement (TWO_STATEMENTS).
 *
 * What only the upstream can close: a request that is in flight when its run is frozen, killed or out of time. It may
 * arrive after one of the next run's. The upstream that remembers the newest Sync-Claim-Seq and refuses older ones
 * never takes an old value after a new one; one that does not look, may (UPSTREAM_DOES_NOT_LOOK).
 *
 * Each name in brackets, given as -D, takes that one thing away, and SPIN finds the way to the fault.
 * REACH_… turns something that must be able to happen into an error, so that the model is seen to be no empty one.
 *
 * Settle and hand-back are one write here, and so are success and failure: the fence does not tell them apart.
 */
#define RUNS 2
#define ANY(P) (P(0) || P(1))
#define LEASE 2                 /* in ticks */
#define OVER (LEASE + 1)        /* no clock needs to count further */
#ifndef CLAIMS
#define CLAIMS 3                /* in all; with -DCLAIMS=5 it is five million states and finds no more */
#endif

/* the row */
bool held = false;              /* IN_PROGRESS */
byte claim_seq = 0;
byte age = OVER;                /* the database's clock since started_at */

/* the runs */
byte mine[RUNS];                /* the number of the claim it has; 0: none */
byte since[RUNS];               /* its own clock since it asked */
bool asking[RUNS];              /* its claim is under way */
bool told[RUNS];                /* it has the answer to its claim */
bool looked[RUNS];              /* it has looked at the clock and will send */
bool working[RUNS];             /* it waits for the upstream's answer */
bool frozen[RUNS];
bool stamping[RUNS];            /* TWO_STATEMENTS: the second is still to come */

/* under way, by who sent it; 0: nothing */
byte request[RUNS];
byte settle[RUNS];

byte newest = 0;                /* the newest claim number the upstream has taken */

#define FREE (!held || age > LEASE)
#define WORKS(i) (!frozen[i] && (looked[i] || working[i]))
#ifdef NO_DEADLINE
#define IN_TIME(i) true
#define LATE(i) false
#else
#define IN_TIME(i) (since[i] < LEASE)
#define LATE(i) (!frozen[i] && (looked[i] || working[i] && since[i] >= LEASE))
#endif

inline pass(clock) {
    clock = (clock < OVER -> clock + 1 : OVER)
}

active proctype clocks() {
    do
    :: atomic {
        !ANY(LATE) ->           /* a live run acts on its deadline before time goes on */
        pass(age);
        pass(since[1]);
        if
        :: pass(since[0])
        :: pass(since[0]); pass(since[0])       /* a faster clock only stops earlier */
#ifdef SLOW_CLOCK
        :: skip
#endif
        fi
    }
    od
}

active [RUNS] proctype worker() {
    byte me = _pid - 1;         /* clocks() is 0 */
    do
    :: d_step {                 /* ask */
        !frozen[me] && !asking[me] && !stamping[me] && mine[me] == 0 && claim_seq < CLAIMS ->
        asking[me] = true;
        since[me] = 0
    }
    :: d_step {                 /* nothing to claim */
        asking[me] && !frozen[me] && !FREE -> asking[me] = false
    }
    :: d_step {                 /* claim: the database does it, whatever has become of the run */
        asking[me] && FREE ->
#ifdef REACH_TAKEOVER
        assert(!held);
#endif
        assert(!WORKS(1 - me));                 /* P1 */
        held = true;
        claim_seq++;
        mine[me] = claim_seq;
        asking[me] = false;
#ifdef TWO_STATEMENTS
        stamping[me] = true
#else
        age = 0
#endif
    }
    :: d_step {                 /* the answer comes, some time, or never */
        mine[me] != 0 && !told[me] && !frozen[me] -> told[me] = true
#ifdef CLOCK_READ_AFTER
        ; since[me] = 0
#endif
    }
#ifdef TWO_STATEMENTS
    :: d_step {
        stamping[me] && told[me] && !frozen[me] -> age = 0; stamping[me] = false
    }
#endif
    :: d_step {                 /* the last look at the clock */
        told[me] && !frozen[me] && !stamping[me] && !looked[me] && !working[me] && IN_TIME(me) ->
        looked[me] = true
    }
    :: d_step {                 /* send; what was given up before may still be under way */
        looked[me] && !frozen[me] && request[me] == 0 ->
        assert(held && claim_seq == mine[me]);  /* P1 */
        looked[me] = false;
        working[me] = true;
        request[me] = mine[me]
    }
    :: d_step {                 /* think better of it; or be answered, or abort */
        !frozen[me] && (looked[me] || working[me]) -> looked[me] = false; working[me] = false
    }
    :: d_step {                 /* settle or hand back, when the work has ended; what becomes of it is not awaited */
        told[me] && !frozen[me] && !stamping[me] && !looked[me] && !working[me] && settle[me] == 0 ->
        settle[me] = mine[me];
        told[me] = false;
        mine[me] = 0
    }
    :: d_step {                 /* kill -9; what it sent is under way all the same. Another run begins in its place */
        mine[me] != 0 || asking[me] ->
        mine[me] = 0;
        told[me] = false;
        asking[me] = false;
        looked[me] = false;
        working[me] = false;
        frozen[me] = false;
        stamping[me] = false
    }
    :: d_step {                 /* SIGSTOP */
#ifdef FROZEN_BEFORE_SEND
        !frozen[me] && (mine[me] != 0 || asking[me]) -> frozen[me] = true
#else
        !frozen[me] && !looked[me] && (mine[me] != 0 || asking[me]) -> frozen[me] = true
#endif
    }
    :: d_step {                 /* SIGCONT: its timers go off before it does anything else */
        frozen[me] ->
        frozen[me] = false;
        if
        :: working[me] && !IN_TIME(me) -> working[me] = false
        :: else
        fi
#ifdef REACH_WOKEN_TOO_LATE
        ; assert(mine[me] == 0 || mine[me] == claim_seq)
#endif
    }
    :: d_step {                 /* the database carries its settle out, some time */
        settle[me] != 0 ->
        if
#ifdef NO_FENCE
        :: true ->
#else
        :: held && claim_seq == settle[me] ->
#endif
            assert(claim_seq == settle[me]);    /* P4 */
            held = false
        :: else ->
#ifdef REACH_FENCED_OUT
            assert(false)
#else
            skip
#endif
        fi;
        settle[me] = 0
    }
    :: d_step {                 /* the request arrives, some time, or never */
        request[me] != 0 ->
        if
#ifndef UPSTREAM_DOES_NOT_LOOK
        :: request[me] < newest ->
#ifdef REACH_REFUSED
            assert(false)
#else
            skip
#endif
#endif
        :: else ->
            assert(request[me] >= newest);      /* never an old value after a new one */
            newest = request[me]
        fi;
        request[me] = 0
    }
    :: d_step {
        request[me] != 0 -> request[me] = 0
    }
    od
}
