-- cmake/coverage.lua - compares the names of PyTorch (tests/golden/names.jsonl) with ours and writes docs/coverage.md.
-- `./dev docs` runs it. What we lack has its reason in tests/lua/missing_names.lua; a name there that has appeared is
-- taken off.
--
-- With the argument "--check" it writes nothing and returns a list of what is wrong; then the table of reasons may
-- follow, for tests.
-- With "--add" what has no reason yet is put under the last one: not built yet.

local gb = require "gibbous"
local mode, given = ...
local names_path, docs_path = "tests/golden/names.jsonl", "docs/coverage.md"
local reasons_path = "tests/lua/missing_names.lua"
local table_of = given or dofile(reasons_path)
local problems, appeared, unlisted = {}, {}, {}

-- Objects whose kinds get their methods when the first one is made.
local once = gb.Function { forward = function(_, x) return x * 1 end, backward = function(_, g) return g end }
once(gb.ones(1):requires_grad_())

-- Parts of PyTorch: what names in it start with, what the docs call it, and where we look for one; the first hit wins.
local places = {
  { "Tensor", "torch.Tensor", "tensor:%s", "tensor.%s" },
  { "torch", "torch", "gb.%s", "gb.nn.functional.%s", "tensor:%s" },
  { "F", "torch.nn.functional", "gb.nn.functional.%s" },
  { "nn", "torch.nn", "gb.nn.%s" },
  { "Module", "torch.nn.Module", "Module:%s", "Module.%s" },
  { "init", "torch.nn.init", "gb.nn.init.%s" },
  { "utils", "torch.nn.utils", "gb.nn.utils.%s" },
  { "optim", "torch.optim", "gb.optim.%s" },
  { "lr_scheduler", "torch.optim.lr_scheduler", "gb.optim.lr.%s" },
  { "linalg", "torch.linalg", "gb.linalg.%s" },
}
local place_of = {}
for _, place in ipairs(places) do place_of[place[1]] = place end

local ours = {} -- the rows of our public names
for _, row in ipairs(gb.test.public_names()) do ours[row.name] = row end

-- Our name for one of PyTorch's that is spelled alike, or nil.
local function find_alike(key)
  local part, name = key:match("^([^.]+)%.(.+)$")
  for i = 3, #place_of[part] do
    local path = place_of[part][i]:format(name)
    if ours[path] then return path end
  end
end

-- Our name for one of PyTorch's, or nil.
local function find(key)
  local renamed = table_of.renamed[key]
  return find_alike(key) or ours[renamed or false] and renamed or nil
end

-- The arguments of one of our names, as a set; nil where its signature does not tell them.
local function arguments_of(path)
  local row = ours[path]
  local entry = gb.test.help_entry(row.op and row.op.name or path)
  local text = entry and entry.signature:match("%b()")
  if not text or text:find("...: any", 1, true) then return nil end
  local set = {}
  for word in text:sub(2, -2):gmatch("[^,;]+") do
    local name = word:match("^%s*([%a_][%w_]*)")
    if name then set[name] = true end
  end
  return set
end

-- {==== reasons ====

local exact, globs = {}, {} -- the reason of a name; and patterns, with their reasons
local function pattern_of(word) return "^" .. word:gsub("[%^$().%[%]+%-?%%]", "%%%0"):gsub("%*", ".*") .. "$" end
for _, reason in ipairs(table_of.reasons) do
  reason.count, reason.listed = 0, {}
  for word in reason.names:gmatch("%S+") do
    if word:find("*", 1, true) then globs[#globs + 1] = { word = word, pattern = pattern_of(word), reason = reason }
    elseif exact[word] then problems[#problems + 1] = ("%s stands under two reasons, or twice under one"):format(word)
    else exact[word] = reason end
  end
end

local used = {} -- the words that some name needs

-- Count a name that is not there under its reason; without one it is a problem.
local function lacking(key)
  local reason = exact[key]
  used[key] = true
  for _, glob in ipairs(reason and {} or globs) do
    if key:find(glob.pattern) then
      reason, used[glob.word] = glob.reason, true
      break
    end
  end
  if reason then reason.count, reason.listed[#reason.listed + 1] = reason.count + 1, key
  else
    unlisted[#unlisted + 1] = key
    problems[#problems + 1] = ("PyTorch's %s is not there, and %s has no reason for it"):format(key, reasons_path)
  end
end

-- A name that is there must not be listed as missing.
local function present(key, path)
  if not exact[key] then return end
  appeared[#appeared + 1], used[key] = key, true
  problems[#problems + 1] = ("%s stands in %s, but %s is there: run ./dev docs"):format(key, reasons_path, path)
end

-- ====}

-- {==== comparing ====

local counts = {} -- by the first part of a name: names and options, how many there are and how many we have
local version
local keys = {} -- all names of PyTorch's
for line in io.lines(names_path) do
  local entry = gb.io.json_decode(line)
  version = version or entry.torch
  local key = entry.name
  if key then
    keys[key] = true
    local part = key:match("^[^.]+")
    local count = counts[part] or { names = 0, there = 0, options = 0, options_there = 0 }
    counts[part] = count
    count.names = count.names + 1
    local path = find(key)
    if not path then lacking(key)
    else
      count.there = count.there + 1
      present(key, path)
      local arguments = arguments_of(path)
      for _, option in ipairs(arguments and entry.options or {}) do
        local word = ("%s(%s)"):format(key, option)
        count.options = count.options + 1
        local renamed = table_of.renamed_options[word] or table_of.renamed_options[option]
        if arguments[option] or arguments[renamed or false] then
          count.options_there = count.options_there + 1
          present(word, path)
        else lacking(word) end
      end
    end
  end
end

for word in pairs(exact) do
  if not used[word] then
    local name = word:match("^(.-)%(")
    if name and not find(name) then lacking(word) -- its name is missing as a whole, for a while
    else
      problems[#problems + 1] = ("%s stands in %s, but PyTorch has no such name"):format(word, reasons_path)
    end
  end
end
for _, glob in ipairs(globs) do
  if not used[glob.word] then
    appeared[#appeared + 1] = glob.word
    local what = "%s in %s stands for nothing that is missing: run ./dev docs"
    problems[#problems + 1] = what:format(glob.word, reasons_path)
  end
end
local known = {} -- names that are there as PyTorch spells them, and need no other
for key, path in pairs(table_of.renamed) do
  local alike = find_alike(key)
  if alike then
    known[#known + 1] = key
    problems[#problems + 1] = ("%s is said to be %s, but %s is there: run ./dev docs"):format(key, path, alike)
  elseif not keys[key] then
    problems[#problems + 1] = ("%s stands in %s, but PyTorch has no such name"):format(key, reasons_path)
  end
end
table.sort(problems)

-- ====}

-- {==== writing ====

-- Words in lines of at most 120 columns, that start with `margin`.
local function wrapped(words, margin)
  local lines, line = {}, nil
  for _, word in ipairs(words) do
    if line and #line + #word + 1 > 120 then
      lines[#lines + 1] = line
      line = nil
    end
    line = line and line .. " " .. word or margin .. word
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

local function write_docs()
  local out = { ([[
# What there is of PyTorch

Made by `./dev docs` from the public names of PyTorch %s (`tests/golden/names.py`) and from our own. A name counts
as there under the name that recipes give it (`x:abs`, `gb.where`, `F.relu`, `nn.Linear`, `optim.lr.Step`); an option,
where our signature has it. Each that is not there stands below, with the reason.

| Part | Names | There | Options of those | There |
|---|---|---|---|---|]]):format(version) }
  for _, place in ipairs(places) do
    local count = counts[place[1]]
    out[#out + 1] = ("| %s | %d | %d | %d | %d |"):format(place[2], count.names, count.there, count.options,
      count.options_there)
  end
  out[#out + 1] = "\n| Why not | Names and options |\n|---|---|"
  for _, reason in ipairs(table_of.reasons) do
    out[#out + 1] = ("| %s | %d |"):format(reason.reason, reason.count)
  end
  out[#out + 1] = "\n## Other names of functions and options\n\n| PyTorch | Gibbous |\n|---|---|"
  local renamed = {}
  for key, path in pairs(table_of.renamed) do
    if find(key) == path then renamed[#renamed + 1] = ("| %s | %s |"):format(key, path) end
  end
  for word, option in pairs(table_of.renamed_options) do
    renamed[#renamed + 1] = ("| %s | %s |"):format(word, option)
  end
  table.sort(renamed)
  table.move(renamed, 1, #renamed, #out + 1, out)
  for _, reason in ipairs(table_of.reasons) do
    table.sort(reason.listed)
    local title = reason.reason:sub(1, 1):upper() .. reason.reason:sub(2)
    local why = {}
    for word in reason.why:gmatch("%S+") do why[#why + 1] = word end
    out[#out + 1] = ("\n## %s\n\n%s\n\n```\n%s\n```"):format(title, wrapped(why, ""), wrapped(reason.listed, ""))
  end
  return table.concat(out, "\n") .. "\n"
end

-- The text of a file, or "".
local function read(path)
  local file <close> = io.open(path, "rb")
  return file and file:read("a") or ""
end

local function write(path, text)
  local out <close> = assert(io.open(path, "wb"))
  out:write(text)
end

-- ====}

-- A text as a pattern that finds it.
local function literally(text) return (text:gsub("%p", "%%%0")) end

-- Bring the table of reasons up to date: without what has appeared, and with what was asked to be added.
local function write_reasons()
  local gone, number, text = {}, 0, read(reasons_path)
  for _, word in ipairs(appeared) do gone[word] = true end
  for _, key in ipairs(known) do text = text:gsub('\n *%["' .. literally(key) .. '"%] = [^\n]*', "", 1) end
  text = text:gsub("names = %[%[(.-)%]%]", function(names)
    local words = {}
    for word in names:gmatch("%S+") do words[#words + 1] = not gone[word] and word or nil end
    number = number + 1
    if mode == "--add" and number == #table_of.reasons then table.move(unlisted, 1, #unlisted, #words + 1, words) end
    return ("names = [[\n%s\n      ]]"):format(wrapped(words, "        "))
  end)
  write(reasons_path, text)
end

local text = write_docs()
if mode == "--check" then
  if read(docs_path) ~= text then problems[#problems + 1] = docs_path .. " is stale: run ./dev docs" end
  return problems
end
write_reasons()
if mode == "--add" then return assert(loadfile("cmake/coverage.lua"))() end -- what it says is now another
write(docs_path, text)
local failed = false
for _, problem in ipairs(problems) do
  if not problem:find("run ./dev docs", 1, true) then
    io.stderr:write(problem, "\n")
    failed = true
  end
end
if failed then os.exit(1) end
