#!lua flags=allow-oom
-- Moves a run to another state, if it is in one from which that is allowed.
-- KEYS  of the run
-- ARGV  3 the state wanted (open becomes loading until all is loaded); 4 why; then the states
--       from which it may be reached
-- Returns  the state before the call
-- Idempotent  by nature
local wanted = ARGV[3]
if wanted == 'open' and tonumber(call('HGET', counts, 'loaded') or 0) < total then
  wanted = 'loading'
end
for i = 5, #ARGV do
  if ARGV[i] == state then
    call('HSET', meta, 'state', wanted, 'hold_reason', ARGV[4])
  end
end
return state
