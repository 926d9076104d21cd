-- Checks whether the server and its user fit the store. The other scripts begin with this text.

-- Returns the commands that the user may not run on this key, in an array.
local function lacks(key)
  local commands = {
    {'evalsha', string.rep('0', 40), '1', key}, {'eval', 'return 1', '1', key}, {'exists', key}, {'hget', key, 'f'},
    {'hgetall', key}, {'hset', key, 'f', 'v'}, {'hdel', key, 'f'}, {'pexpireat', key, '1'}, {'persist', key},
  }
  local missing = {}
  if redis.acl_check_cmd then
    for _, command in ipairs(commands) do
      local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(command))
      if is_known and not is_allowed then missing[#missing + 1] = command[1] end
    end
    return missing
  end
  -- Redis 6. These commands change nothing if there's no record, and otherwise only the record's next write shows.
  if redis.pcall('EXISTS', key) ~= 0 then return missing end
  for _, name in ipairs({'hget', 'hgetall', 'hdel', 'persist', 'pexpireat'}) do
    local command = {name, key}
    if name == 'hget' or name == 'hdel' then command[3] = 'f' end
    if name == 'pexpireat' then command[3] = '1' end
    local answer = redis.pcall(unpack(command))
    local problem = type(answer) == 'table' and answer.err
    if problem and (string.find(problem, 'NOPERM') or string.find(problem, "can't run this command")) then
      missing[#missing + 1] = name
    end
  end
  return missing
end

-- Returns the eviction policy, or nil if the server doesn't say it, or the user may not ask.
local function eviction_policy()
  -- Redis 5 and 6 need this before a command whose answer varies, if their configuration says so.
  if redis.replicate_commands then redis.replicate_commands() end
  local memory = redis.pcall('INFO', 'memory')
  return type(memory) == 'string' and string.match(memory, 'maxmemory_policy:([%a%-]+)') or nil
end

