-- The canary: the first rows that are handed out are watched, and too many bad ones hold the run.
-- KEYS, ARGV  see _run.lua
--
-- The watched are a fixed set, so that answers which come early, as empty ones do, weigh no more
-- than they will in the end: a run is held as soon as the bad ones are a share of all the watched,
-- however many of them are still to come. Each counts by its first finished try.
local watching = known[6] == 'watching'
local counting = watching or known[6] == 'held' -- what was in flight when it was held, too
local LEAST = 5 -- fewer bad rows prove nothing

-- Returns how many more items are to be watched.
local function to_watch()
  if not watching then return 0 end
  return tonumber(call('HGET', meta, 'canary_rows')) - call('HLEN', canary)
end

-- Ends the watch where all of the watched have finished.
local function pass(finished, rows)
  if not watching or finished < rows then return end
  call('HSET', meta, 'canary', 'passed')
  call('DEL', canary)
end

-- Holds the run if so many bad ones are too large a share, and that was not accepted (share 0).
local function judge(reason, bad, share, rows)
  share = tonumber(share)
  if not watching or share == 0 then return end
  if bad < math.max(LEAST, math.ceil(share * rows - 1e-9)) then return end
  watching = false
  call('HSET', meta, 'canary', 'held', 'canary_held', reason, 'state', 'held', 'hold_reason', '')
end

-- Counts the class of an item's first finished try; `failed`: nothing of it is kept.
local function watch(n, class, failed)
  if not counting or call('HGET', canary, n) ~= '' then return end
  call('HSET', canary, n, class)
  local set = call('HMGET', meta, 'canary_rows', 'canary_keep', 'canary_faults',
    'canary_truncated')
  local rows, finished = tonumber(set[1]), call('HINCRBY', counts, 'canary:finished', 1)
  local alike = call('HINCRBY', counts, 'canary:class:' .. class, 1)
  if failed and not string.find(set[2], ' ' .. class .. ' ', 1, true) then
    judge('faults', call('HINCRBY', counts, 'canary:faults', 1), set[3], rows)
  end
  if class == 'truncated' then judge('truncated', alike, set[4], rows) end
  pass(finished, rows)
end

-- Goes on watching for all but what the run was held for. What is truncated and not kept is among
-- the faults: who was shown it and accepted it is not held for it a second time.
local function accept()
  local reason, rows, kept =
    unpack(call('HMGET', meta, 'canary_held', 'canary_rows', 'canary_keep'))
  call('HSET', meta, 'canary', 'watching', 'canary_' .. reason, 0)
  if reason == 'faults' and not string.find(kept, ' truncated ', 1, true) then
    call('HSET', meta, 'canary_truncated', 0)
  end
  watching = true
  pass(tonumber(call('HGET', counts, 'canary:finished')), tonumber(rows))
end

-- Begins anew, with what has no result yet.
local function watch_anew()
  for _, name in ipairs(call('HKEYS', counts)) do
    if string.sub(name, 1, 7) == 'canary:' then call('HDEL', counts, name) end
  end
  call('DEL', canary)
  local rows = math.min(call('HGET', meta, 'canary_rows'), total - call('BITCOUNT', done))
  call('HSET', meta, 'canary', 'watching', 'canary_rows', rows)
end
