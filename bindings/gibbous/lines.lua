-- lines.lua - files with a sentence on each line as samples of ids, and the vocabulary that the ids stand for.
--
-- Ids of words: 0 fills (padding), 1 is any word that the vocabulary lacks, the words follow, the most frequent first.
-- Ids of bytes are the bytes themselves; 0 fills, since a text holds no zero byte.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private = native.define, native.own, native.private
local format, gmatch, lower, gsub, byte, char = string.format, string.gmatch, string.lower, string.gsub, string.byte,
  string.char
local concat, sort, utf8_len, math_type, is_tensor = table.concat, table.sort, utf8.len, math.type, gb.is_tensor
local data = gb.data

local PAD, UNKNOWN, FIRST = 0, 1, 2 -- ids: FIRST is that of the first word

-- {==== Words ====

-- Capitals of Latin-1 in UTF-8 are two bytes, 0xc3 and one of these; 0x97 is the multiplication sign.
local function lower_utf8(text)
  return (gsub(lower(text), "\xc3([\x80-\x96\x98-\x9e])", function(c) return "\xc3" .. char(byte(c) + 32) end))
end

-- The words of a text one by one.
local function words_of(mine, text) return gmatch(mine.lower and lower_utf8(text) or text, "[^ \t\r\n\v\f]+") end

-- ====}

-- {==== Vocabulary ====

-- What is private of a vocabulary: level, lower, words (a list; nil of bytes), id_of (by word), vocabulary_size.
local Vocabulary = {}
Vocabulary.__index = Vocabulary
Vocabulary.__name = "gb.data.Vocabulary"
native.classes.Vocabulary = Vocabulary

local function size_of(mine) return mine.words and #mine.words + FIRST or 256 end

function Vocabulary:__len()
  local mine = private(self, "vocabulary")
  return mine and size_of(mine) or 0
end
function Vocabulary:__tostring()
  local mine = private(self, "vocabulary")
  return mine and format("Vocabulary (%d ids of %s)", size_of(mine), mine.level) or "Vocabulary"
end

-- Take these words, in the order of their ids.
local function take_words(mine, words)
  mine.words, mine.id_of = words, {}
  for i = 1, #words do mine.id_of[words[i]] = i + FIRST - 1 end
end

-- Count the words of samples whose first value is a text; more than one value of a sample is of no interest here.
local function learn(mine, count, get, options)
  local counts, words = {}, {}
  if options.max_vocabulary and options.max_vocabulary <= FIRST then
    fail(format("max_vocabulary = %d leaves no word beside the two ids 0 and 1", options.max_vocabulary))
  end
  for i = 1, count do
    local text = get(i)
    if type(text) ~= "string" then
      fail(format("Vocabulary: sample %d is a %s, and texts are wanted: gb.data.lines(path, { level = \"text\" }) \z
        gives them", i, native.type_name(text)))
    end
    for word in words_of(mine, text) do
      local before = counts[word]
      if not before then words[#words + 1] = word end
      counts[word] = (before or 0) + 1
    end
  end
  sort(words, function(a, b)
    if counts[a] ~= counts[b] then return counts[a] > counts[b] end
    return a < b
  end)
  local most = options.max_vocabulary and options.max_vocabulary - FIRST or #words
  local kept = {}
  for i = 1, #words do
    if i > most or counts[words[i]] < options.min_count then break end
    kept[i] = words[i]
  end
  take_words(mine, kept)
end

-- A vocabulary that knows no words as yet.
local function make(level, lowers)
  local mine = { level = level, lower = lowers }
  if level == "words" then take_words(mine, {}) end
  return own(setmetatable({}, Vocabulary), "vocabulary", mine), mine
end

data.Vocabulary = define("gb.data.Vocabulary(texts?: any; level: \"words\"|\"bytes\" = \"words\", max_vocabulary?: \z
  size, min_count: size = 1, lower: bool = false) -> any: The ids of words (what blanks separate) that occur in \z
  texts: a list of strings, or a dataset whose samples begin with one. 0 fills, 1 is a word that is not there, the \z
  others follow by how often they occur, equal ones by their bytes; #vocabulary counts all of them. max_vocabulary: \z
  ids at most, these two among them; words that occur fewer than min_count times are left out. lower: in small \z
  letters, of ASCII and Latin-1. Of bytes the ids are the 256 bytes. Without texts it knows no word, until \z
  load_state_dict. Example: local vocabulary = gb.data.Vocabulary({ \"a b\", \"a c\" }) \z
  print(#vocabulary, vocabulary:encode(\"a d\"))",
  "strict",
  function(texts, options)
    local vocabulary, mine = make(options.level, options.lower)
    if texts == nil or options.level == "bytes" then return vocabulary end
    local list, count, get = type(texts) == "table" and native.copy(texts)
    if list and list[1] ~= nil then count, get = #list, function(i) return list[i] end
    else count, get = native.reader_of(texts, "Vocabulary") end
    learn(mine, count, get, options)
    return vocabulary
  end)

-- The ids of a text as a list, at most so many.
local function encode(mine, text, most)
  local ids, n = {}, 0
  if mine.level == "bytes" then
    for i = 1, most and most < #text and most or #text do ids[i] = byte(text, i) end
    return ids
  end
  local id_of = mine.id_of
  for word in words_of(mine, text) do
    if n == most then break end
    n = n + 1
    ids[n] = id_of[word] or UNKNOWN
  end
  return ids
end

Vocabulary.encode = define("Vocabulary:encode(text: string; length?: size) -> tensor: The ids of a text, an int64 \z
  vector; with length cut or filled with 0 to that many. Example: print(gb.data.Vocabulary({ \"a b\" }):encode(\"b a \z
  c\", { length = 4 }))", "strict",
  function(self, text, options)
    local ids = encode(private(self, "vocabulary"), text, options.length)
    for i = #ids + 1, options.length or 0 do ids[i] = PAD end
    return gb.tensor(ids, { dtype = "int64" })
  end)

Vocabulary.decode = define("Vocabulary:decode(ids: tensor|list) -> string: The text of ids: words with a blank \z
  between them, or bytes. 0 is left out, 1 is <unk>. Errors: an id that there is not. Example: local vocabulary = \z
  gb.data.Vocabulary({ \"a b\" }) print(vocabulary:decode({ 3, 2 }))", "strict",
  function(self, ids)
    local mine, words = private(self, "vocabulary"), {}
    if is_tensor(ids) then
      if ids:dim() ~= 1 then fail(format("decode: the tensor has %d dimensions, it needs 1", ids:dim())) end
      ids = ids:tolist()
    end
    for i = 1, #ids do
      local id = ids[i]
      if math_type(id) ~= "integer" or id < 0 or id >= size_of(mine) then
        fail(format("decode: id %s is none of 0 .. %d", tostring(id), size_of(mine) - 1))
      end
      if id ~= PAD then
        words[#words + 1] = mine.level == "bytes" and char(id) or id == UNKNOWN and "<unk>"
          or mine.words[id - FIRST + 1]
      end
    end
    return concat(words, mine.level == "words" and " " or "")
  end)

Vocabulary.words = define("Vocabulary:words() -> list: The words in the order of their ids, from 2; none of bytes. \z
  Example: print(gb.data.Vocabulary({ \"a b\" }):words()[1])", "strict",
  function(self) return native.copy(private(self, "vocabulary").words or {}) end)

Vocabulary.state_dict = define("Vocabulary:state_dict() -> table: The words and how texts are read, for a checkpoint. \z
  Example: local state = gb.data.Vocabulary({ \"a b\" }):state_dict()", "strict",
  function(self)
    local mine = private(self, "vocabulary")
    for i = 1, mine.words and #mine.words or 0 do
      if not utf8_len(mine.words[i]) then
        fail(format("Vocabulary: word %d is not UTF-8 and cannot be saved; read the file with encoding = \"latin-1\"",
          i + FIRST - 1))
      end
    end
    return { level = mine.level, lower = mine.lower, words = mine.words and native.copy(mine.words) or {} }
  end)

Vocabulary.load_state_dict = define("Vocabulary:load_state_dict(state: tree): Be what state_dict told of. Errors: a \z
  state of another form. Example: local a, b = gb.data.Vocabulary({ \"a b\" }), gb.data.Vocabulary() \z
  b:load_state_dict(a:state_dict())", "strict",
  function(self, state)
    local mine, words, seen = private(self, "vocabulary"), {}, {}
    local level = state.level
    if level ~= "words" and level ~= "bytes" or type(state.lower) ~= "boolean" or type(state.words) ~= "table" then
      fail("Vocabulary: load_state_dict takes what state_dict gave")
    end
    for i = 1, #state.words do
      local word = state.words[i]
      if type(word) ~= "string" or seen[word] then
        fail(format("Vocabulary: load_state_dict: word %d is %s", i, type(word) == "string" and "there twice" or
          "no string"))
      end
      words[i], seen[word] = word, true
    end
    mine.level, mine.lower, mine.words, mine.id_of = level, state.lower, nil, nil
    if level == "words" then take_words(mine, words) end
  end)

-- ====}

-- {==== Files of lines ====

-- The lines of files as texts in UTF-8: how many there are, and a function that gives a text and the number of its
-- file.
local function open_texts(paths, encoding)
  local files, ends, count = {}, {}, 0
  for i = 1, #paths do
    files[i] = native.lines(paths[i])
    count = count + files[i]:count()
    ends[i] = count
  end
  return count, function(i)
    local f = 1
    while ends[f] < i do f = f + 1 end
    local text, number = files[f]:read(i - (ends[f - 1] or 0))
    if encoding == "latin-1" then return native.latin1(text), f end
    local length, at = utf8_len(text)
    if not length and encoding == "utf-8" then
      fail(format("lines: '%s', line %d, byte %d is not UTF-8; say encoding = \"latin-1\", or \"bytes\" to take it as \z
        it is", paths[f], number, at))
    end
    return text, f
  end
end

-- Paths and the label of each: none of a single path, the numbers from 0 of a list, unless they are given.
local function check_paths(path, labels)
  local paths = type(path) == "table" and path or { path }
  if #paths == 0 then fail("lines takes a path or a list of paths") end
  for i = 1, #paths do
    if type(paths[i]) ~= "string" then fail(format("lines: path %d is a %s", i, native.type_name(paths[i]))) end
  end
  if labels and #labels ~= #paths then
    fail(format("lines: there are %d labels and %d paths; each path has one", #labels, #paths))
  end
  for i = 1, labels and #labels or 0 do
    if math_type(labels[i]) ~= "integer" then fail(format("lines: label %d is no whole number", i)) end
  end
  if not labels and #paths > 1 then
    labels = {}
    for i = 1, #paths do labels[i] = i - 1 end
  end
  return paths, labels
end

data.lines = define("gb.data.lines(path: path|list; level: \"words\"|\"bytes\"|\"text\" = \"words\", vocabulary?: \z
  any, max_vocabulary?: size, min_count: size = 1, lower: bool = false, encoding: \"utf-8\"|\"latin-1\"|\"bytes\" = \z
  \"utf-8\", length?: size, labels?: list) -> any, any: Files with a sentence on each line; empty lines are passed \z
  over. A sample is the ids of a line, int64, and of a list of paths the label of its file: its place in the list \z
  from 0, or of labels. Lines have different lengths (see gb.data.pad_collate), or with length one: cut, or filled \z
  with 0; then the dataset is native. The second result is the gb.data.Vocabulary: the one given, or one fitted to \z
  all lines with max_vocabulary, min_count and lower. level = \"text\" gives the lines themselves. Errors: a line \z
  that is not of the encoding, by its number. Example: local path = os.tmpname() local file = io.open(path, \"w\") \z
  file:write(\"a b a\\nb c\\n\") file:close() local set, vocabulary = gb.data.lines(path) print(#set, \z
  vocabulary:decode(set:get(1))) os.remove(path)", "files",
  function(path, options)
    local paths, labels = check_paths(path, options.labels)
    local level, vocabulary = options.level, options.vocabulary
    local count, text_of = open_texts(paths, level == "bytes" and options.encoding == "utf-8" and "bytes" or
      options.encoding)
    if level == "text" then
      return native.make_dataset("lines", count, function(i)
        local text, f = text_of(i)
        if labels then return text, labels[f] end
        return text
      end)
    end
    if vocabulary == nil then
      local mine
      vocabulary, mine = make(level, options.lower)
      if level == "words" then learn(mine, count, text_of, options) end
    elseif not private(vocabulary, "vocabulary") then
      fail(format("lines: 'vocabulary' is a gb.data.Vocabulary, not a %s", native.type_name(vocabulary)))
    end
    local mine, length = private(vocabulary, "vocabulary"), options.length
    if not length then
      return native.make_dataset("lines", count, function(i)
        local text, f = text_of(i)
        local ids = gb.tensor(encode(mine, text), { dtype = "int64" })
        if labels then return ids, labels[f] end
        return ids
      end), vocabulary
    end
    local ids, files = gb.zeros(count, length, { dtype = "int64" }), {}
    for i = 1, count do
      local text, f = text_of(i)
      local row = encode(mine, text, length)
      if #row > 0 then ids:select(1, i):narrow(1, 1, #row):copy_(gb.tensor(row, { dtype = "int64" })) end
      files[i] = labels and labels[f]
    end
    if labels then return data.TensorDataset(ids, gb.tensor(files, { dtype = "int64" })), vocabulary end
    return data.TensorDataset(ids), vocabulary
  end)

-- ====}
