#!lua flags=allow-oom
-- Takes back what RQ left behind: ids half taken or half requeued, running too long, failed by it.
-- KEYS  of the run
-- ARGV  3 who asks: the one that `reap` let in; 4 deliveries an item may have; 5 life of a dead
--       letter s; 6 record (of RQ's) for those that had all their deliveries; 7 limit
-- Returns  {items taken back, items dead-lettered, 1 if there is more}
-- Idempotent  by nature: what was taken back is no longer there
local limit, swept, buried = tonumber(ARGV[7]), 0, 0
if call('GET', lock) ~= ARGV[3] then return { 0, 0, 0 } end
settle()
local stock = stock_running()

-- Puts an id that RQ lost hold of back at the head, unless its item is elsewhere.
local function take_back(id, charge)
  local n = item_of(id)
  if not n then return call('RPUSH', foreign, id) end
  call('ZREM', finished, id)
  if call('GETBIT', done, n) == 1 then return call('SREM', ghosts, n) end
  if call('HEXISTS', holder, n) == 1 or call('ZSCORE', scheduled, id)
    or call('ZSCORE', failed, id) then return end
  if charge and call('HINCRBY', deliveries, n, 1) >= tonumber(ARGV[4]) then
    buried = buried + 1
    return bury(n, 'aborted', '', ARGV[6], tonumber(ARGV[5]))
  end
  swept = swept + 1
  lean(n, 'queued')
  call('LPUSH', queue, id)
end

-- 1. Ids that have been in RQ's intermediate list for a minute: their worker died taking them.
local taking, since = call('LRANGE', inter, 0, limit - 1), {}
for _, id in ipairs(taking) do
  since[id] = math.min(call('HGET', seen, id) or now, now) -- later: the clock was set back
  if now - since[id] > 60000 then
    since[id] = nil
    call('LREM', inter, 0, id)
    if stock[id] then call('ZREM', wip, stock[id]) end
    take_back(id)
  end
end

-- 2. Dead letters that `rq requeue` took out and never queued: it was cut off in between.
if call('HLEN', dead) > call('ZCARD', failed) then
  for _, n in ipairs(call('HRANDFIELD', dead, limit)) do
    local id = id_of(n)
    if call('HGET', jobs .. n, 'status') == 'failed' and not call('ZSCORE', failed, id) then
      local first = math.min(call('HGET', seen, id) or now, now)
      if now - first < 10000 then since[id] = first
      else call('ZADD', failed, clock[1] + tonumber(ARGV[5]) - DAY, id) end
    end
  end
end
call('DEL', seen)
for id, time in pairs(since) do call('HSET', seen, id, time) end

-- 3. Entries of rq:wip whose deadline has passed: their worker died running them.
local late = call('ZRANGEBYSCORE', wip, '-inf', clock[1], 'LIMIT', 0, limit)
for _, member in ipairs(late) do
  local id = string.match(member, '^[^:]*')
  call('ZREM', wip, member)
  call('LREM', inter, 0, id)
  local n = item_of(id)
  if not n or call('HGET', jobs .. n, 'status') ~= 'queued' then take_back(id) end
end

-- 4. Failures that a stock worker recorded: their entries have the latest expiry of all.
local newest = call('ZREVRANGE', failed, 0, limit - 1)
for _, id in ipairs(newest) do
  local n = item_of(id)
  if not n or call('HEXISTS', dead, n) == 0 then
    call('ZREM', failed, id)
    take_back(id, true)
  end
end

-- 5. RQ's window of finished jobs.
local past = math.min(call('ZCOUNT', finished, '-inf', clock[1]), 1000)
if past > 0 then call('ZREMRANGEBYRANK', finished, 0, past - 1) end
return { swept, buried, (#taking == limit or #late == limit or past == 1000) and 1 or 0 }
