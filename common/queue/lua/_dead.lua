-- How failures are kept: where RQ's tools look for them.
-- KEYS, ARGV  see _run.lua

-- Writes RQ's result record of a failure, which was now or `at` (unix ms). A fresh stream node has
-- 4 kB of room: the copy has none.
local function note(n, worker, record, at)
  local key = results .. n
  call('XADD', key, 'MAXLEN', 10, at or '*', 'type', 2, 'worker_name', worker, 'exc_string', record)
  call('COPY', key, scratch, 'REPLACE')
  call('RENAME', scratch, key)
  call('PERSIST', key)
end

-- Dead-letters an item that was withdrawn. RQ's own entries expire in a year; ours a day sooner,
-- so that those which a stock worker made sort behind all of ours. Its attempts stay as they were
-- used up: who looks at it later is told of no try that it never had.
local function bury(n, class, worker, record, ttl, at)
  lean(n, 'failed')
  call('HSET', jobs .. n, 'ended_at', iso(at and { math.floor(at / 1000), at % 1000 * 1000 }))
  call('ZADD', failed, clock[1] + ttl - DAY, id_of(n))
  call('HSET', dead, n, class)
  call('HDEL', expired, n)
  forget_turns(n)
  note(n, worker, record, at)
end
