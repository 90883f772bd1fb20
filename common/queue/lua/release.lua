#!lua flags=allow-oom
-- Gives leases back: the items go to the head of the queue in their order, and nothing is charged.
-- KEYS  of the run
-- ARGV  3 worker; 4 request id; then item number, token
-- Returns  how many were given back: those that the worker still held
-- Idempotent  by the lease; the answer by the request id
local worker, request = ARGV[3], ARGV[4]
if bad_items(5, 2) then return redis.error_reply('GENQ_BAD no such item') end
local kept = recall(worker, 'release', request)
if kept then return tonumber(kept) end
local given = 0
settle()
for i = #ARGV - 1, 5, -2 do
  local n, claim = tonumber(ARGV[i]), ARGV[i + 1] .. ' ' .. worker
  if call('HGET', holder, n) == claim then
    unlease(n, claim)
    lean(n, 'queued')
    call('LPUSH', queue, id_of(n))
    given = given + 1
  end
end
if given > 0 then remember(worker, 'release', request, given) end
return given
