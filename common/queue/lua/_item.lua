-- How an item moves: what the scripts share, so that every move is the same everywhere.
-- KEYS, ARGV  see _run.lua

-- Drops the marks of answered items whose ids the queue no longer holds. Before every push.
local function settle()
  if call('LLEN', queue) == 0 and call('LLEN', inter) == 0 then call('DEL', ghosts) end
end

-- Takes the lease away whose holder field is `held` ("token worker").
local function unlease(n, held)
  call('HDEL', holder, n)
  call('ZREM', lease, n)
  call('ZREM', wip, id_of(n) .. ':' .. string.match(held, '^%S+'))
end

-- Forgets the turns of a conversation that were kept for its next holder: there will be none.
local function forget_turns(n)
  local bytes = call('HSTRLEN', turns, n)
  if bytes > 0 then
    call('HDEL', turns, n)
    call('HINCRBY', counts, 'turns_bytes', -bytes)
  end
end

-- Returns what stock RQ workers are running: job id -> member of rq:wip.
local function stock_running()
  local found = {}
  for _, member in ipairs(call('ZRANGEBYSCORE', wip, '-inf', '(+inf', 'LIMIT', 0, 200)) do
    found[string.match(member, '^[^:]*')] = member
  end
  return found
end

-- Takes an item out of wherever it is open. Returns true if its id stays in the queue, too deep
-- to be looked for: the item is then a ghost there.
local function withdraw(n)
  local id, held = id_of(n), call('HGET', holder, n)
  if held then return unlease(n, held) end
  if call('ZREM', scheduled, id) == 1 or call('ZREM', failed, id) == 1 then return end
  if call('LPOS', queue, id, 'MAXLEN', CHUNK) then
    call('LREM', queue, 1, id)
  elseif call('LREM', inter, 1, id) == 0 then
    if call('GETBIT', chunks, math.floor(n / CHUNK)) == 0 then
      call('HINCRBY', counts, 'loaded', 1) -- answered before its chunk was loaded
    elseif call('LLEN', queue) > CHUNK and call('HGET', jobs .. n, 'status') == 'queued' then
      return call('SADD', ghosts, n) == 1
    end
  end
end

-- Tells whether any item has a history or waits elsewhere than in the queue: mostly none does.
local function troubled()
  return call('EXISTS', deliveries, deaths, dead, expired, scheduled, failed) > 0
end

-- Makes the job hash of an open item as it should be, whatever RQ's tools did to it.
local function lean(n, status)
  call('HSET', jobs .. n, 'data', DATA, 'origin', run, 'status', status)
  call('HDEL', jobs .. n, 'worker_name', 'started_at', 'ended_at')
  call('PERSIST', jobs .. n)
end

-- Marks an item that was withdrawn as answered, for us and for RQ. A ghost's hash stays until
-- `lease` meets its id: RQ's tools delete ids without a hash from the queue.
local function finish(n, ghost, ttl, history)
  call('SETBIT', done, n, 1)
  forget_turns(n)
  if history then
    for _, key in ipairs({ deliveries, deaths, dead, expired }) do call('HDEL', key, n) end
  end
  call('HSET', jobs .. n, 'data', DATA, 'origin', run, 'status', 'finished', 'ended_at', iso())
  call('ZADD', finished, clock[1] + ttl, id_of(n))
  if not ghost then call('EXPIRE', jobs .. n, ttl) end
  call('EXPIRE', results .. n, ttl)
end
