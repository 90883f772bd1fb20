#!lua flags=allow-oom
-- Moves a run to another state, if it is in one from which that is allowed.
-- KEYS  of the run
-- ARGV  3 the state wanted; 4 why; then the states from which it may be reached
-- Returns  the state before the call
-- Idempotent  by nature
for i = 5, #ARGV do
  if ARGV[i] == state then
    call('HSET', meta, 'state', ARGV[3], 'hold_reason', ARGV[4])
  end
end
return state
