-- Applies one put to one record if all its conditions hold. Otherwise, returns the record as it is.
--
-- KEYS[1]  the record, a hash
-- ARGV     the number of conditions, and each as a relation, a field and a value;
--          the number of fields to remove, and their names;
--          when Redis removes the record, or empty for never;
--          what to check before the write: "commands", "all" (also the eviction policy), or empty for nothing;
--          the fields to set, each with its value
--
-- Returns 1, or the status UNKNOWN if the write was applied although the eviction policy can't be checked; or the record as
-- HGETALL returns it: empty if there is none. If the server or its user doesn't fit, returns the error LACKS or EVICTS, and writes nothing.

local record, at = KEYS[1], 0

local function take()
  at = at + 1
  return ARGV[at]
end

local function holds(relation, field, value)
  if relation == 'no record' then return redis.call('EXISTS', record) == 0 end
  local found = redis.call('HGET', record, field)
  if relation == 'missing' then return not found end
  return relation == 'equal' and found == value
end

for _ = 1, tonumber(take()) do
  if not holds(take(), take(), take()) then return redis.call('HGETALL', record) end
end

-- Remove fields first, since a removal needs no memory. When memory is full, Redis rejects a script's first write if
-- that write needs memory, but never a later one. So a full Redis refuses a first claim, which removes nothing, and
-- still records an outcome.
local removed = {}
for n = 1, tonumber(take()) do removed[n] = take() end
local removal, check, applied = take(), take(), 1
if check ~= '' then
  local missing = lacks(record)
  if #missing > 0 then return redis.error_reply('LACKS ' .. table.concat(missing, ',')) end
end
if check == 'all' then
  local policy = eviction_policy()
  if policy and policy ~= 'noeviction' then return redis.error_reply('EVICTS ' .. policy) end
  if not policy then applied = redis.status_reply('UNKNOWN') end
end
if #removed > 0 then redis.call('HDEL', record, unpack(removed)) end

local fields = {}
while at < #ARGV do fields[#fields + 1] = take() end
redis.call('HSET', record, unpack(fields))
if removal ~= '' then redis.call('PEXPIREAT', record, removal) else redis.call('PERSIST', record) end
return applied
