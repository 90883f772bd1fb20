-- What every script begins with: the keys of the run, its epoch and state, the server's clock.
-- KEYS  always all that common.keys.RunKeys.script_keys() lists, in its order
-- ARGV  1 the run's name; 2 the epoch that the caller means, or * for any
local call = redis.call
local queue, inter, wip, scheduled, failed, finished, jobs, results, workers, queues, suspended,
  meta, counts, lease, holder, done, committed, chunks, stream, deliveries, deaths, dead, ghosts,
  expired, answers, seen, foreign, turns, lock, scratch, runs, started, canary = unpack(KEYS)
local run = ARGV[1]
local known = call('HMGET', meta, 'epoch', 'state', 'total', 'max_attempts', 'reloaded', 'canary')
local epoch, state = known[1], known[2]
local total, max_attempts = tonumber(known[3]), tonumber(known[4])
if ARGV[2] ~= '*' and ARGV[2] ~= epoch then
  return redis.error_reply('GENQ_EPOCH ' .. (epoch or 'missing'))
end
local over = state == 'closed' or state == 'cancelled'
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000) -- unix ms
local CHUNK = 1000 -- items a chunk, and how far into the queue a script looks for an id
local DAY = 86400
local DATA = '["common.queue.run",null,[],{}]' -- what RQ calls when it runs a job of ours

local function id_of(n)
  return run .. '-' .. n
end

-- Returns the number that an RQ job id names, or nil if the id is not one of this run's.
local function item_of(id)
  local text = string.sub(id, #run + 2)
  if string.sub(id, 1, #run + 1) == run .. '-' and string.find(text, '^%d+$') then
    local n = tonumber(text)
    if n < total and id_of(n) == id then return n end
  end
end

-- Tells whether one of the item numbers at ARGV[first], ARGV[first + step], ... is not an item.
local function bad_items(first, step)
  for i = first, #ARGV, step do
    local n = tonumber(ARGV[i])
    if not n or n < 0 or n >= total or n % 1 ~= 0 then return true end
  end
  return (#ARGV - first + 1) % step ~= 0
end

-- Returns the answer that the worker was given when it made the same request before, or nil.
local function recall(worker, operation, request)
  local kept = call('HGET', answers, worker .. ':' .. operation)
  if kept and string.match(kept, '^%S+') == request then
    return string.match(kept, '^%S+ %S+ (.*)$')
  end
end

local function remember(worker, operation, request, answer)
  call('HSET', answers, worker .. ':' .. operation, request .. ' ' .. now .. ' ' .. answer)
  return answer
end

-- Returns a time {s, us} as RQ writes it: the server's, if none is given.
local function iso(at)
  local clock = at or clock
  local days, year, month = math.floor(clock[1] / DAY), 1970, 1
  local function leap() return (year % 4 == 0 and year % 100 ~= 0 or year % 400 == 0) and 1 or 0 end
  while days >= 365 + leap() do
    days, year = days - 365 - leap(), year + 1
  end
  local lengths = { 31, 28 + leap(), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }
  while days >= lengths[month] do
    days, month = days - lengths[month], month + 1
  end
  local s = clock[1] % DAY
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, days + 1,
    math.floor(s / 3600), math.floor(s / 60) % 60, s % 60, clock[2])
end
