-- args.lua - gb.args: options of a recipe from the command line, declared as a list of { name, default, help, least =
-- number, writes = true, needed = true }.
--
-- The default's type is the option's type. `--name value`, `--name=value`; a boolean is set by `--name` or `--no-name`.
-- --help prints the list and ends the recipe. A command line that does not fit is the user's slip, not the recipe's:
-- its error is an object with a text, which the executable (and `lua`) shows alone, without a traceback, and ends with
-- status 1.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, copy = native.define, native.copy
local format, gsub, match, concat = string.format, string.gsub, string.match, table.concat

local Slip = { __name = "gb.args", __tostring = function(self) return self.message end }

local function refuse(message) error(setmetatable({ message = message }, Slip), 0) end

local function usage(list, name)
  local lines = { format("usage: %s [options]", name) }
  for _, row in ipairs(list) do
    local default = row[2]
    local words = { row[3] }
    if row.needed then words[#words + 1] = "(needed)" end
    if row.least then words[#words + 1] = format("(default %s, at least %s)", tostring(default), tostring(row.least))
    elseif default ~= "" then words[#words + 1] = format("(default %s)", tostring(default)) end
    lines[#lines + 1] = format("  --%s %s", native.pad(row[1], 18), concat(words, " "))
  end
  lines[#lines + 1] = format("  --%s %s", native.pad("help", 18), "show this list")
  return concat(lines, "\n")
end

-- The number, if the row allows it. NaN is at least nothing.
local function bounded(row, number)
  if row.least and not (number >= row.least) then
    refuse(format("--%s is at least %s, got %s", row[1], tostring(row.least), tostring(number)))
  end
  return number
end

-- Whether files that the recipe will write can be written is better known before it has worked for hours. An empty name
-- is no file; one that is needed and not given would come back as an error about that empty name.
local function check_texts(list, values)
  for _, row in ipairs(list) do
    local path = row.writes and values[row[1]] or ""
    local why = path ~= "" and native.why_unwritable(path)
    if why then refuse(format("--%s: %s", row[1], why)) end
  end
  for _, row in ipairs(list) do
    if row.needed and values[row[1]] == "" then
      refuse(format("--%s is missing%s; --help shows the list", row[1], row[3] and ": " .. row[3] or ""))
    end
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
  refuse(format("--%s takes %s, got '%s'", row[1], wanted[kind], text))
end

-- Row i of the list, checked; a copy.
local function check_row(given, i)
  local row = type(given) == "table" and copy(given) or {}
  local kind = type(row[2])
  if type(row[1]) ~= "string" or not (kind == "string" or kind == "number" or kind == "boolean") then
    fail(format("args: row %d is not { name, default, help } with a default that is a string, a number or a boolean",
      i))
  end
  if row[3] ~= nil and type(row[3]) ~= "string" then
    fail(format("args: row %d: the help is a string, got %s", i, type(row[3])))
  end
  if row.least ~= nil and not (type(row.least) == "number" and kind == "number" and row[2] >= row.least) then
    fail(format("args: row %d: least is a number, of a default that is a number from there on", i))
  end
  if row.writes and kind ~= "string" then
    fail(format("args: row %d: writes is for names of files, the default is a %s", i, kind))
  end
  if row.needed and row[2] ~= "" then
    fail(format("args: row %d: what is needed has the default \"\", which nobody gives", i))
  end
  return row
end

-- The rows by name, their defaults, and what the command line may say.
local function rows_of(list)
  local rows, values, known = {}, {}, { ["--help"] = true }
  for i = 1, #list do
    local row = check_row(list[i], i)
    list[i] = row
    rows[row[1]], values[row[1]], known["--" .. row[1]] = row, row[2], true
  end
  return rows, values, known
end

gb.args = define("gb.args(list: list, from?: table) -> table: The options of a recipe, declared as a list of { \z
  name, default, help }, from the command line (or `from`, a list of strings): --name value, --name=value, --name \z
  and --no-name for booleans; --help prints the list. A row of a number may carry least = number, below which a \z
  value is refused; one of a string writes = true: it names a file that will be written, \"\" none, and is tried at \z
  once; or needed = true: \"\" is refused. Errors: an unknown option, a value of another type than the default's, a \z
  file that cannot be written, one that is needed and not given. \z
  Example: local args = gb.args({ { \"lr\", 1e-3, \"learning rate\" } }, { \"--lr\", \"0.01\" })", "strict",
  function(list, from)
  local rows, values, known = rows_of(list)
  local line = from or native.command_line()
  local function is_switch(key) return key and rows[key] and type(rows[key][2]) == "boolean" end
  local i = 1
  while i <= #line do
    local word = line[i]
    if type(word) ~= "string" then
      fail(format("args: the command line is a list of strings, but [%d] is a %s", i, type(word)))
    end
    local name, text = match(word, "^%-%-([%w_%-]+)=(.*)$")
    name = name or match(word, "^%-%-([%w_%-]+)$")
    if word == "--help" or word == "-h" then
      print(usage(list, type(line[0]) == "string" and line[0] or "recipe"))
      native.finish()
    end
    local key = name and gsub(name, "%-", "_")
    local negated = key and match(key, "^no_(.+)$")
    if is_switch(key) and not text and not (line[i + 1] == "true" or line[i + 1] == "false") then
      values[key] = true
    elseif is_switch(negated) then
      values[negated] = false
    elseif key and rows[key] then
      if not text then
        i = i + 1
        text = line[i] or refuse(format("--%s needs a value", name))
        if type(text) ~= "string" then
          fail(format("args: the command line is a list of strings, but [%d] is a %s", i, type(text)))
        end
      end
      values[key] = convert(rows[key], text)
    else
      refuse(format("unknown option '%s'%s; --help shows the list", word, native.nearest(match(word, "^[^=]*"), known)))
    end
    i = i + 1
  end
  check_texts(list, values)
  return values
end)
