#!lua flags=allow-oom
-- Puts due retries on the queue and takes expired leases back, some of each a call.
-- KEYS  of the run
-- ARGV  3 who asks: for two seconds nobody else does; 4 run id of the server process; 5 lease ms;
--       6 deliveries an item may have; 7 life of a dead letter s; 8 record (of RQ's) for those that
--       had all their deliveries; 9 limit
-- Returns  {leases taken back, retries put on the queue, items dead-lettered, 1 if there is more,
--          1 if leases may expire: not so within a lease's length of a start or of a new epoch,
--          leases and retries whose end was brought near: the clock was set back}
-- Idempotent  by nature: what was taken back is no longer due
local owner, span, limit = ARGV[3], tonumber(ARGV[5]), tonumber(ARGV[9])
local holds = call('GET', lock)
-- A lock that lives longer than ours ever do is from before the clock was set back.
if holds and holds ~= owner and call('PTTL', lock) <= 2000 then return { 0, 0, 0, 0, 0, 0 } end
call('SET', lock, owner, 'PX', 2000)
settle()

local due = call('ZRANGEBYSCORE', scheduled, '-inf', now / 1000, 'LIMIT', 0, limit)
for _, id in ipairs(due) do
  local n = item_of(id)
  call('ZREM', scheduled, id)
  if n then
    lean(n, 'queued')
    call('RPUSH', queue, id)
  else
    call('RPUSH', foreign, id)
  end
end

if call('HGET', started, 'run_id') ~= ARGV[4] then
  call('HSET', started, 'run_id', ARGV[4], 'since', now)
end
local rewound, again, from = rewind(span, limit)
again = again or #due == limit
if now < from then return { 0, #due, 0, again and 1 or 0, 0, rewound } end

local late = call('ZRANGEBYSCORE', lease, '-inf', now, 'LIMIT', 0, limit)
local buried = 0
for i = #late, 1, -1 do -- from the last, so that the head of the queue keeps their order
  local n = tonumber(late[i])
  local claim = call('HGET', holder, n) or '- ?'
  local worker = string.match(claim, '^%S+ (.*)$')
  local stock = string.sub(worker, 1, 3) == 'rq-' -- a stock worker's lease: nobody is to blame
  unlease(n, claim)
  call('ZREM', finished, id_of(n))
  if not stock and call('HINCRBY', deliveries, n, 1) >= tonumber(ARGV[6]) then
    bury(n, 'timeout', worker, ARGV[8], tonumber(ARGV[7]))
    call('HINCRBY', counts, 'failure:timeout', 1)
    buried = buried + 1
  else
    call('HSET', expired, n, claim)
    lean(n, 'queued')
    call('LPUSH', queue, id_of(n))
  end
end

-- Answers kept for repeated calls: a few are looked at each time, old ones forgotten.
local some = call('HRANDFIELD', answers, 10, 'WITHVALUES')
for i = 1, #some, 2 do
  local at = tonumber(string.match(some[i + 1], '^%S+ (%S+)'))
  if now - at > 600000 then call('HDEL', answers, some[i]) end
end
return { #late, #due, buried, (again or #late == limit) and 1 or 0, 1, rewound }
