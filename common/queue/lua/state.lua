#!lua flags=allow-oom
-- Moves a run to another state, if it is in one from which that is allowed.
-- KEYS  of the run
-- ARGV  3 the state wanted (open becomes loading until all is loaded); 4 why; then the states
--       from which it may be reached. Out of held, what the canary held it for is accepted; out of
--       cancelled, the canary watches anew
-- Returns  the state before the call
-- Idempotent  by nature
if not epoch then return redis.error_reply('GENQ_EPOCH missing') end
local wanted = ARGV[3]
if wanted == 'open' and tonumber(call('HGET', counts, 'loaded') or 0) < total then
  wanted = 'loading'
end
for i = 5, #ARGV do
  if ARGV[i] == state then
    call('HSET', meta, 'state', wanted, 'hold_reason', ARGV[4])
    if known[6] == 'held' and state == 'held' then accept() end
    if known[6] == 'held' and state == 'cancelled' then watch_anew() end
  end
end
return state
