-- args.lua - gb.args: options of a recipe from the command line, declared as a list of { name, default, help, least = number,
-- writes = true }.
--
-- The default's type is the option's type. `--name value`, `--name=value`; a boolean is set by `--name` or `--no-name`. --help prints the
-- list and ends the recipe. A command line that does not fit is the user's slip, not the recipe's: its error is an object with a text, which
-- the executable (and `lua`) shows alone, without a traceback, and ends with status 1.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line

local Slip = { __name = "gb.args", __tostring = function(self) return self.message end }

local function refuse(message) error(setmetatable({ message = message }, Slip), 0) end

local function usage(list, name)
  local lines = { ("usage: %s [options]"):format(name) }
  for _, row in ipairs(list) do
    local default = row[2]
    local words = { row[3] }
    if row.least then words[#words + 1] = ("(default %s, at least %s)"):format(default, row.least)
    elseif default ~= "" then words[#words + 1] = ("(default %s)"):format(tostring(default)) end
    lines[#lines + 1] = ("  --%-18s %s"):format(row[1], table.concat(words, " "))
  end
  lines[#lines + 1] = ("  --%-18s %s"):format("help", "show this list")
  return table.concat(lines, "\n")
end

-- The number, if the row allows it. NaN is at least nothing.
local function bounded(row, number)
  if row.least and not (number >= row.least) then refuse(("--%s is at least %s, got %s"):format(row[1], row.least, number)) end
  return number
end

-- Whether files that the recipe will write can be written is better known before it has worked for hours. An empty name is no file.
local function check_files(list, values)
  for _, row in ipairs(list) do
    local path = row.writes and values[row[1]] or ""
    local why = path ~= "" and native.why_unwritable(path)
    if why then refuse(("--%s: %s"):format(row[1], why)) end
  end
end

-- The text of an option as a value of its default's type.
local function convert(row, text)
  local kind = math.type(row[2]) or type(row[2])
  if kind == "string" then return text end
  local number = tonumber(text)
  if kind == "integer" and number and math.tointeger(number) then return bounded(row, math.tointeger(number)) end
  if kind == "float" and number then return bounded(row, number + 0.0) end
  if kind == "boolean" and (text == "true" or text == "false") then return text == "true" end
  local wanted = { boolean = "true or false", integer = "a whole number", float = "a number" }
  refuse(("--%s takes %s, got '%s'"):format(row[1], wanted[kind], text))
end

-- gb.args(list: list, from?: list) -> table: The options of a recipe, declared as a list of { name, default, help }, from the command line (or
-- `from`, a list of strings): --name value, --name=value, --name and --no-name for booleans; --help prints the list. A row of a number may carry
-- least = number, below which a value is refused; one of a string writes = true: it names a file that will be written, "" none, and is tried at once.
-- Errors: an unknown option, a value of another type than the default's, a file that cannot be written. Example: local args = gb.args({ { "lr", 1e-3,
-- "learning rate" } }, { "--lr", "0.01" })
function gb.args(list, from)
  local line = from or rawget(_G, "arg") or {}
  local rows, values, known = {}, {}, { ["--help"] = true }
  if type(list) ~= "table" then fail(("args takes a list of { name, default, help }, got %s"):format(type(list))) end
  for i, row in ipairs(list) do
    local kind = type(row) == "table" and type(row[2])
    if not kind or type(row[1]) ~= "string" or not (kind == "string" or kind == "number" or kind == "boolean") then
      fail(("args: row %d is not { name, default, help } with a default that is a string, a number or a boolean"):format(i))
    end
    if row.least ~= nil and not (type(row.least) == "number" and kind == "number" and row[2] >= row.least) then
      fail(("args: row %d: least is a number, of a default that is a number from there on"):format(i))
    end
    if row.writes and kind ~= "string" then fail(("args: row %d: writes is for names of files, the default is a %s"):format(i, kind)) end
    rows[row[1]] = row
    values[row[1]] = row[2]
    known["--" .. row[1]] = true
  end
  local i = 1
  while i <= #line do
    local word = line[i]
    if type(word) ~= "string" then fail(("args: the command line is a list of strings, but [%d] is a %s"):format(i, type(word))) end
    local name, text = word:match("^%-%-([%w_%-]+)=(.*)$")
    name = name or word:match("^%-%-([%w_%-]+)$")
    if word == "--help" or word == "-h" then
      print(usage(list, line[0] or "recipe"))
      native.finish()
    end
    local key = name and name:gsub("%-", "_")
    local negated = key and key:match("^no_(.+)$")
    if key and rows[key] and type(rows[key][2]) == "boolean" and not text and not (line[i + 1] == "true" or line[i + 1] == "false") then
      values[key] = true
    elseif negated and rows[negated] and type(rows[negated][2]) == "boolean" then
      values[negated] = false
    elseif key and rows[key] then
      if not text then
        i = i + 1
        text = line[i] or refuse(("--%s needs a value"):format(name))
      end
      values[key] = convert(rows[key], text)
    else
      refuse(("unknown option '%s'%s; --help shows the list"):format(word, native.nearest(word:match("^[^=]*"), known)))
    end
    i = i + 1
  end
  check_files(list, values)
  return values
end
