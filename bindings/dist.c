/* dist.c - gb.dist: the processes of a job, and what they exchange. Without init this process is a job of one. */
#include <stdlib.h>
#include <string.h>

#include "dist/room.h"
#include "dist/sharded.h"
#include "dist/shards.h"
#include "dist/tensors.h"
#include "host.h"
#include "objects.h"
#include "reader.h"
#include "step/optimizer.h"
#include "step/split.h"

static const gbl_type group_type, handle_type;

/* The job; NULL: this process is alone. */
static gb_comm *job_of(const gbl_call *call) {
  gb_comm *comm = gb_dist_comm(call->state->context);
  return comm && comm->size > 1 ? comm : NULL;
}

/* The group that was given; NULL: none was. */
static gb_comm *group_of(const gbl_call *call) {
  gb_comm *group = gbl_given(call, "group") ? gbl_object(call, "group") : NULL;
  if (group && !group->job) gbl_refuse(call, "the job of 'group' was left; make groups after gb.dist.init()");
  return group;
}

/* Who takes part in a collective: the group that was given, the job, or this process alone. */
static gb_comm *ranks_of(const gbl_call *call, gb_comm *alone) {
  gb_comm *group = group_of(call);
  if (group && group->rank < 0)
    gbl_refuse(call, "this process, rank %d, is not in 'group'; ask gb.dist.rank(group) first", group->job->rank);
  *alone = gb_comm_alone(call->state->context);
  return group ? group : job_of(call) ? job_of(call) : alone;
}

/* The number of another rank, or of any, as the group counts it. */
static int rank_argument(const gbl_call *call, const gb_comm *comm, const char *name, bool other) {
  const gb_comm *job = gb_dist_comm(call->state->context);
  int64_t rank = gbl_integer(call, name), size = job ? job->size : 1;
  if (rank >= size) return gbl_refuse(call, "'%s' is rank %lld, and the job has %lld: 0 to %lld", name, (long long)rank,
                                      (long long)size, (long long)size - 1);
  if (other && rank == (job ? job->rank : 0))
    return gbl_refuse(call, "'%s' is rank %lld, which is this process; a message goes to another one", name,
                      (long long)rank);
  if (!comm->members) return (int)rank;
  for (int i = 0; i < comm->size; i++)
    if (comm->members[i] == rank) return i;
  return gbl_refuse(call, "'%s' is rank %lld, which is not in 'group'", name, (long long)rank);
}

static gb_dist_op op_argument(const gbl_call *call) {
  int op = 0;
  while (op < GB_DIST_OPS - 1 && strcmp(gbl_string(call, "op"), gb_dist_op_names[op])) op++;
  return (gb_dist_op)op;
}

/* Push a list of so many tensors, which boxes will hold. */
static gbl_box **push_boxes(lua_State *L, int count) {
  gbl_box **boxes = lua_newuserdatauv(L, sizeof *boxes * (size_t)(count + 1), 0);
  luaL_checkstack(L, 8, "gb.dist");
  lua_createtable(L, count, 0);
  for (int i = 0; i < count; i++) {
    boxes[i] = gbl_new_tensor(L);
    lua_rawseti(L, -2, i + 1);
  }
  return boxes;
}

/* The results of a call on the stack: those that are the argument itself, of index `given`, a tensor, or a list. */
static int push_results(lua_State *L, const gb_dist_call *call, int given, gb_tensor *const *made, int count) {
  if (call->kind == GB_DIST_SEND) return 0;
  if (call->kind == GB_DIST_ALL_GATHER) {
    gbl_box **boxes = push_boxes(L, count);
    for (int i = 0; i < count; i++) gb_tensor_retain(boxes[i]->tensor = made[i]);
  } else if (call->kind == GB_DIST_REDUCE_SCATTER) {
    gbl_box *box = gbl_new_tensor(L);
    gb_tensor_retain(box->tensor = made[0]);
    gbl_finish_tensor(L);
  } else lua_pushvalue(L, given);
  return 1;
}

/* Make the call, or begin it: then the handle keeps the tensor's value, which wait returns. */
static int exchange(lua_State *L, gbl_call *call, gb_dist_kind kind, const char *peer) {
  gb_comm alone, *comm = ranks_of(call, &alone);
  gb_dist_call it = { .kind = kind, .tensor = gbl_tensor(call, "tensor") };
  int given = gbl_argument(call, "tensor")->index;
  if (peer) it.peer = rank_argument(call, comm, peer, kind == GB_DIST_SEND || kind == GB_DIST_RECV);
  if (kind == GB_DIST_ALL_REDUCE || kind == GB_DIST_REDUCE_SCATTER) it.op = op_argument(call);
  void **slot = gbl_new_object(L, &handle_type, 1);
  gb_handle *handle = NULL;
  if (gbl_boolean(call, "async")) {
    gbl_share_tensor(L, given);
    lua_pushvalue(L, given);
    lua_setiuservalue(L, -2, 1);
    gb_status status = gb_dist_call_begin(comm, &it, &handle);
    *slot = handle;
    gbl_check_status(L, status);
    return 1;
  }
  int count = kind == GB_DIST_ALL_GATHER ? comm->size : kind == GB_DIST_REDUCE_SCATTER;
  gb_tensor **made = lua_newuserdatauv(L, sizeof *made * (size_t)(count + 1), 0);
  gbl_box **boxes = push_boxes(L, count);
  gbl_check_status(L, gb_dist_call_now(comm, &it, made));
  for (int i = 0; i < count; i++) boxes[i]->tensor = made[i];
  if (kind == GB_DIST_ALL_GATHER) return 1;
  if (kind == GB_DIST_REDUCE_SCATTER) return lua_rawgeti(L, -1, 1), 1;
  return push_results(L, &it, given, NULL, 0);
}

static int init(lua_State *L, gbl_call *call) {
  gb_launch launch = { -1, -1, -1, gbl_number(call, "timeout") };
  if (gbl_given(call, "rank")) launch.rank = gbl_integer(call, "rank");
  if (gbl_given(call, "world_size")) launch.size = gbl_integer(call, "world_size");
  if (gbl_given(call, "local_rank")) launch.local_rank = gbl_integer(call, "local_rank");
  if (!(launch.timeout > 0)) return gbl_refuse(call, "'timeout' must be above 0 seconds, got %g", launch.timeout);
  return gbl_check_status(L, gb_dist_init(call->state->context, &launch));
}

static int finalize(lua_State *L, gbl_call *call) {
  (void)L;
  gb_dist_finalize(call->state->context, true);
  return 0;
}

static int is_initialized(lua_State *L, gbl_call *call) {
  lua_pushboolean(L, gb_dist_comm(call->state->context) != NULL);
  return 1;
}

/* The rank, or -1 where the process is not in the group. */
static int rank(lua_State *L, gbl_call *call) {
  const gb_comm *group = group_of(call), *comm = group ? group : gb_dist_comm(call->state->context);
  lua_pushinteger(L, comm ? comm->rank : 0);
  return 1;
}

static int world_size(lua_State *L, gbl_call *call) {
  const gb_comm *group = group_of(call), *comm = group ? group : gb_dist_comm(call->state->context);
  lua_pushinteger(L, comm ? comm->size : 1);
  return 1;
}

static int local_rank(lua_State *L, gbl_call *call) {
  const gb_comm *comm = gb_dist_comm(call->state->context);
  lua_pushinteger(L, comm ? comm->local_rank : 0);
  return 1;
}

/* A table of what went over the wire. */
static int stats(lua_State *L, gbl_call *call) {
  gb_comm *job = gb_dist_comm(call->state->context);
  const gb_traffic t = job ? gb_comm_traffic(job) : (gb_traffic){ 0 };
  const struct { const char *name; int64_t value; } list[] = {
    { "messages_sent", t.messages_sent }, { "bytes_sent", t.bytes_sent }, { "messages_received", t.messages_received },
    { "bytes_received", t.bytes_received }, { "bytes_summed", t.bytes_summed },
    { "bytes_copied", t.bytes_copied }, { "bytes_direct", t.bytes_direct }, { "bytes_staged", t.bytes_staged },
  };
  enum { COUNT = sizeof list / sizeof *list };
  lua_createtable(L, 0, COUNT);
  for (int i = 0; i < COUNT; i++) {
    lua_pushstring(L, list[i].name);
    lua_pushinteger(L, (lua_Integer)list[i].value);
    lua_rawset(L, -3);
  }
  return 1;
}

static int barrier(lua_State *L, gbl_call *call) {
  gb_comm alone, *comm = ranks_of(call, &alone);
  if (comm == &alone) return 0;
  gbl_check_status(L, gb_comm_begin(comm, "dist.barrier"));
  return gbl_check_status(L, gb_comm_end(comm, gb_comm_barrier(comm)));
}

static int broadcast(lua_State *L, gbl_call *call) { return exchange(L, call, GB_DIST_BROADCAST, "source"); }
static int all_reduce(lua_State *L, gbl_call *call) { return exchange(L, call, GB_DIST_ALL_REDUCE, NULL); }
static int all_gather(lua_State *L, gbl_call *call) { return exchange(L, call, GB_DIST_ALL_GATHER, NULL); }
static int reduce_scatter(lua_State *L, gbl_call *call) { return exchange(L, call, GB_DIST_REDUCE_SCATTER, NULL); }
static int send(lua_State *L, gbl_call *call) { return exchange(L, call, GB_DIST_SEND, "to"); }
static int recv(lua_State *L, gbl_call *call) { return exchange(L, call, GB_DIST_RECV, "from"); }

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* The ranks of the list, in rising order, each once; *count of them, in memory of Lua's. */
static int *check_members(lua_State *L, gbl_call *call, int size, int *count) {
  int list = gbl_argument(call, "ranks")->index;
  *count = (int)lua_rawlen(L, list);
  int *members = lua_newuserdatauv(L, sizeof *members * (size_t)(*count + 1), 0);
  if (*count < 1 || *count > size) gbl_refuse(call, "'ranks' has %d ranks, and the job %d", *count, size);
  for (int i = 0; i < *count; i++) {
    lua_rawgeti(L, list, i + 1);
    int is_integer;
    lua_Integer rank = lua_tointegerx(L, -1, &is_integer);
    if (lua_type(L, -1) != LUA_TNUMBER || !is_integer || rank < 0 || rank >= size)
      gbl_refuse(call, "'ranks' holds ranks of the job, from 0 to %d, but [%d] is %s", size - 1, i + 1,
                 lua_type(L, -1) == LUA_TNUMBER ? lua_tostring(L, -1) : gbl_type_name(L, lua_gettop(L)));
    members[i] = (int)rank;
    lua_pop(L, 1);
  }
  qsort(members, (size_t)*count, sizeof *members, by_number);
  for (int i = 1; i < *count; i++)
    if (members[i] == members[i - 1]) gbl_refuse(call, "'ranks' has rank %d twice", members[i]);
  return members;
}

static int new_group(lua_State *L, gbl_call *call) {
  gb_comm *job = gb_dist_comm(call->state->context);
  int count;
  if (!job) return gbl_refuse(call, "there is no job; call gb.dist.init() first");
  int *members = check_members(L, call, job->size, &count);
  void **slot = gbl_new_object(L, &group_type, 0);
  gb_comm *group = NULL;
  gb_status status = gb_comm_group(job, members, count, &group);
  *slot = group;
  gbl_check_status(L, status);
  return 1;
}

static const gbl_function functions[] = {
  { init, GB_SANDBOX_NONE,
    "gb.dist.init(; rank?: count, world_size?: size, local_rank?: count, timeout: number = 300): Join the job that "
    "this process was started in: by mpirun -n 4 gibbous recipe.lua, over MPI, or by torchrun --nproc-per-node 4 "
    "--no-python gibbous recipe.lua, over NCCL, where each process has the GPU of its local rank. Which rank it is of "
    "how many is read from what is given, or from the environment of torchrun, OpenMPI or SLURM; a process that was "
    "started alone is a job of one. timeout is how many seconds one message may take, and all to come. Errors: no MPI "
    "plugin, numbers that MPI does not agree with, torchrun's environment without a GPU or NCCL, a rank that does not "
    "come, or with another number of them. Example: gb.dist.init() gb.dist.finalize()" },
  { finalize, GB_SANDBOX_NONE,
    "gb.dist.finalize(): Leave the job, once all have come here. The end of a recipe does it too. Example: "
    "gb.dist.finalize()" },
  { is_initialized, GB_SANDBOX_STRICT,
    "gb.dist.is_initialized() -> bool: Has this process joined a job? Example: print(gb.dist.is_initialized())" },
  { rank, GB_SANDBOX_STRICT,
    "gb.dist.rank(group?: group) -> int: The number of this process in the job, or in the group, from 0; -1 where "
    "it is not in the group. Example: if gb.dist.rank() == 0 then "
    "print(\"once\") end" },
  { world_size, GB_SANDBOX_STRICT,
    "gb.dist.world_size(group?: group) -> int: How many processes the job has, or the group; 1 where no job was "
    "joined. Example: "
    "print(gb.dist.world_size())" },
  { local_rank, GB_SANDBOX_STRICT,
    "gb.dist.local_rank() -> int: The number of this process among those of its machine, from 0. Example: "
    "print(gb.dist.local_rank())" },
  { stats, GB_SANDBOX_STRICT,
    "gb.dist.stats() -> table: What this process has sent and received since it joined the job: messages_sent, "
    "bytes_sent, messages_received, bytes_received; bytes_summed, which it gave to sums of the transport (order = "
    "'free'), whose messages it does not see; bytes_copied, of gradients of DataParallel, to where they are summed and "
    "back; bytes_direct, those that a GPU sent from its own memory; and bytes_staged, of gradients and of tensors in "
    "collectives, between a GPU's memory and the host's. Heartbeats do not count. "
    "Example: print(gb.dist.stats().bytes_sent)" },
  { barrier, GB_SANDBOX_STRICT,
    "gb.dist.barrier(group?: group): Wait until every process, of the group where one is given, has come here. "
    "Errors: the timeout. Example: gb.dist.barrier()" },
  { broadcast, GB_SANDBOX_STRICT,
    "gb.dist.broadcast(tensor: tensor, source: count = 0; group?: group, async: bool = false) -> any: Every process "
    "gets the values of the source's tensor, in place; returns the tensor. group: only its processes take part; ranks "
    "are still those of the job. async: returns a handle at once, whose wait() gives the result, here and in the other "
    "calls. Errors: a rank that is not there, tensors of different sizes. Example: "
    "gb.dist.broadcast(gb.zeros(3))" },
  { all_reduce, GB_SANDBOX_STRICT,
    "gb.dist.all_reduce(tensor: tensor, op: \"sum\"|\"mean\"|\"max\"|\"or\" = \"sum\"; group?: group, async: bool "
    "= false) -> any: The tensors of all processes become their sum, mean, maximum or bitwise or, in place, by a "
    "fixed tree over the ranks; 16-bit floats "
    "are added in float32. Errors: an op that the dtype does not have, tensors of different sizes. Example: "
    "gb.dist.all_reduce(gb.ones(3), \"mean\")" },
  { all_gather, GB_SANDBOX_STRICT,
    "gb.dist.all_gather(tensor: tensor; group?: group, async: bool = false) -> any: The list of the tensors of all "
    "processes, in order of their ranks: that of rank 0 "
    "is the first. Errors: tensors of different sizes. Example: print(#gb.dist.all_gather(gb.ones(3)))" },
  { reduce_scatter, GB_SANDBOX_STRICT,
    "gb.dist.reduce_scatter(tensor: tensor, op: \"sum\"|\"mean\"|\"max\"|\"or\" = \"sum\"; group?: group, async: "
    "bool = false) -> any: This process's part of what all_reduce would give, where dimension 1 is cut into as many "
    "equal parts as there are ranks. "
    "Errors: a dimension that they cannot share evenly. Example: print(gb.dist.reduce_scatter(gb.ones(8)))" },
  { send, GB_SANDBOX_STRICT,
    "gb.dist.send(tensor: tensor, to: count; group?: group, async: bool = false) -> any: Send the values to one other "
    "process, which calls recv. Errors: a rank "
    "that is not there, or is this process. Example: if gb.dist.world_size() > 1 and gb.dist.rank() == 0 then "
    "gb.dist.send(gb.ones(3), 1) end" },
  { recv, GB_SANDBOX_STRICT,
    "gb.dist.recv(tensor: tensor, from: count; group?: group, async: bool = false) -> any: Receive values from one "
    "other process, in place: of the same "
    "shape and dtype as those that were sent. Errors: a rank that is not there, or is this process. Example: if "
    "gb.dist.rank() == 1 then gb.dist.recv(gb.zeros(3), 0) end" },
  { new_group, GB_SANDBOX_STRICT,
    "gb.dist.new_group(ranks: list) -> group: Some processes of the job, for the option group of the calls of "
    "gb.dist. Every process of the job makes every group, in the same order, whether it is in it or not. Errors: no "
    "job, ranks that it does not have, processes that name others. Example: gb.dist.init() local group = "
    "gb.dist.new_group { 0 } gb.dist.finalize()" },
  { NULL, 0, NULL },
};

/* {==== Groups and handles ==== */

static void release_group(void *object) { gb_comm_let_go(object); }
static const gbl_type group_type = {
  "gibbous.group", release_group, NULL, NULL,
  "group:close(): Release the group now instead of when it is collected. Example: "
  "gb.dist.init() gb.dist.new_group({ 0 }):close()",
};

static void release_handle(void *object) { gb_handle_free(object); }

static int handle_wait(lua_State *L, gbl_call *call) {
  gb_handle *handle = gbl_object(call, "self");
  int count;
  gbl_check_status(L, gb_handle_wait(handle));
  gb_tensor *const *made = gb_handle_results(handle, &count);
  lua_getiuservalue(L, gbl_argument(call, "self")->native, 1);
  return push_results(L, gb_handle_call(handle), lua_gettop(L), made, count);
}

static int handle_is_done(lua_State *L, gbl_call *call) {
  lua_pushboolean(L, gb_handle_is_done(gbl_object(call, "self")));
  return 1;
}

static const gbl_function handle_methods[] = {
  { handle_wait, GB_SANDBOX_STRICT,
    "handle:wait() -> any: Wait until the exchange that a call of gb.dist with async = true has begun is done, and "
    "write its result: what the call would have returned. Errors: those of the exchange. Example: "
    "gb.dist.all_reduce(gb.ones(3), \"sum\", { async = true }):wait()" },
  { handle_is_done, GB_SANDBOX_STRICT,
    "handle:is_completed() -> bool: Would wait() return at once? Example: print(gb.dist.all_reduce(gb.ones(3), "
    "\"sum\", { async = true }):is_completed())" },
  { NULL, 0, NULL },
};
static const gbl_type handle_type = {
  "gibbous.handle", release_handle, NULL, handle_methods,
  "handle:close(): Release the handle now instead of when it is collected; its result is lost. Example: "
  "gb.dist.all_reduce(gb.ones(3), \"sum\", { async = true }):close()",
};

/* ====} */

/* {==== Virtual shards: objects of the Lua half, nn/parallel.lua ==== */

static const gbl_type shards_type;
static void release(void *object) { gb_shards_free(object); }

/* shards(count, overlap, is_free); overlap nil: where it hides something */
static int shards_new(lua_State *L) {
  gb_context *context = gbl_context(L);
  gb_overlap overlap = lua_isnil(L, 2) ? GB_OVERLAP_WHERE_IT_HIDES : lua_toboolean(L, 2) ? GB_OVERLAP_ALWAYS
                                                                                       : GB_OVERLAP_NEVER;
  gb_shards_options options = { gbl_check_integer(L, 1, "DataParallel", "shards"), overlap, lua_toboolean(L, 3) };
  void **slot = gbl_new_object(L, &shards_type, 0);
  gb_shards *made = NULL;
  gb_status status = gb_shards_new(context, &options, &made);
  *slot = made;
  gbl_check_status(L, status);
  return 1;
}

/* shards:agree(tensors, names) */
static int shards_agree(lua_State *L) {
  gbl_enter(L);
  gb_shards *s = gbl_check_object(L, 1, &shards_type);
  int count = 0;
  gb_tensor **tensors = gbl_check_tensors(L, 2, "DataParallel", "model", &count);
  const char **names = lua_newuserdatauv(L, sizeof *names * ((size_t)count + 1), 0);
  for (int i = 0; i < count; i++) {
    lua_rawgeti(L, 3, i + 1);
    names[i] = gbl_check_name(L, -1, "DataParallel"); /* the table keeps it */
    lua_pop(L, 1);
  }
  return gbl_check_status(L, gb_shards_agree(s, tensors, names, count));
}

/* shards:begin(parameters, buffers, samples, holds, odd, note?, counted?, expected?) */
static int shards_begin(lua_State *L) {
  gbl_enter(L);
  gb_shards *s = gbl_check_object(L, 1, &shards_type);
  int n_parameters = 0, n_buffers = 0;
  gb_tensor **parameters = gbl_check_tensors(L, 2, "DataParallel:shards", "model", &n_parameters);
  gb_tensor **buffers = gbl_check_tensors(L, 3, "DataParallel:shards", "model", &n_buffers);
  gb_round round = { .samples = gbl_check_integer(L, 4, "DataParallel:shards", "samples"),
                     .odd = lua_tointeger(L, 6), .holds = lua_toboolean(L, 5), .counted = lua_tonumber(L, 8),
                     .expected = lua_tointeger(L, 9) };
  for (int i = 0; i < GB_ROUND_LOADER && lua_istable(L, 7); i++) {
    lua_rawgeti(L, 7, i + 1);
    round.loader[i] = lua_tointeger(L, -1);
    lua_pop(L, 1);
  }
  return gbl_check_status(L, gb_shards_begin(s, parameters, n_parameters, buffers, n_buffers, &round));
}

/* shards:next() -> first sample (from 1), samples; nothing at the end of the round */
static int shards_next(lua_State *L) {
  gbl_enter(L);
  int64_t first = 0, count = 0;
  gbl_check_status(L, gb_shards_next(gbl_check_object(L, 1, &shards_type), &first, &count));
  if (count == 0) return 0;
  lua_pushinteger(L, (lua_Integer)first + 1);
  lua_pushinteger(L, (lua_Integer)count);
  return 2;
}

static int shards_abandon(lua_State *L) {
  gbl_enter(L);
  gb_shards_abandon(gbl_check_object(L, 1, &shards_type));
  return 0;
}

static int shards_is_open(lua_State *L) {
  lua_pushboolean(L, gb_shards_is_open(gbl_check_object(L, 1, &shards_type)));
  return 1;
}

/* shards:record(loss) */
static int shards_record(lua_State *L) {
  gbl_enter(L);
  gb_shards *s = gbl_check_object(L, 1, &shards_type);
  return gbl_check_status(L, gb_shards_record(s, gbl_check_number(L, 2, "DataParallel:record", "loss")));
}

static int shards_loss(lua_State *L) {
  lua_pushnumber(L, gb_shards_loss(gbl_check_object(L, 1, &shards_type)));
  return 1;
}

/* shards:wish(bits): what this process wishes in the round that is open */
static int shards_wish(lua_State *L) {
  gb_shards_wish(gbl_check_object(L, 1, &shards_type),
                 (uint32_t)gbl_check_integer(L, 2, "DataParallel:shards", "wishes"));
  return 0;
}

/* shards:wishes() -> what any process has wished in the last round */
static int shards_wishes(lua_State *L) {
  lua_pushinteger(L, gb_shards_wishes(gbl_check_object(L, 1, &shards_type)));
  return 1;
}

/* shards:miscounted() -> what all processes counted in the last round, where it was taken back for that; or nothing */
static int shards_miscounted(lua_State *L) {
  double counted;
  if (!gb_shards_miscounted(gbl_check_object(L, 1, &shards_type), &counted)) return 0;
  lua_pushnumber(L, counted);
  return 1;
}

static const luaL_Reg shards_methods[] = {
  { "agree", shards_agree }, { "begin", shards_begin }, { "next", shards_next }, { "abandon", shards_abandon },
  { "is_open", shards_is_open }, { "record", shards_record }, { "loss", shards_loss },
  { "wish", shards_wish }, { "wishes", shards_wishes }, { "miscounted", shards_miscounted }, { NULL, NULL },
};

/* launch_size(): how many processes this one was started with; a sandbox has no environment. */
static int launch_size(lua_State *L) {
  int64_t size = 1;
  if (!gbl_in_sandbox(L)) gbl_check_status(L, gb_launch_size(gbl_context(L), &size));
  lua_pushinteger(L, (lua_Integer)size);
  return 1;
}

static const gbl_type shards_type = { "gibbous.shards", release, shards_methods, NULL, NULL };

/* ====} */

/* {==== Sharded optimizers: their class is optim.lua's ==== */

/* shard(optimizer, gradients, narrows): the native one; are its gradients shared out too, and may weights be brought
 * together in 16 bits? */
static int shard(lua_State *L) {
  gbl_enter(L);
  gb_optimizer *optimizer = gbl_check_object(L, 1, &gbl_optimizer_type);
  return gbl_check_status(L, gb_optimizer_shard(gbl_context(L), optimizer, lua_toboolean(L, 2), lua_toboolean(L, 3)));
}

/* gather(optimizer): all float32 weights. */
static int gather(lua_State *L) {
  gbl_enter(L);
  return gbl_check_status(L, gb_optimizer_gather(gbl_check_object(L, 1, &gbl_optimizer_type)));
}

/* join(optimizer) -> was it shared out? */
static int join(lua_State *L) {
  gbl_enter(L);
  gb_optimizer *optimizer = gbl_check_object(L, 1, &gbl_optimizer_type);
  bool was = gb_optimizer_is_split(optimizer);
  gbl_check_status(L, gb_optimizer_join(optimizer));
  lua_pushboolean(L, was);
  return 1;
}

/* whole_gradients(list): the same tensors, but of gradients that are shared out copies of the whole ones; every process
 * calls it. */
static int whole_gradients(lua_State *L) {
  int count;
  gbl_enter(L);
  gb_tensor **list = gbl_check_tensors(L, 1, "gradients", "tensors", &count);
  gb_tensor **made = lua_newuserdatauv(L, sizeof *made * (size_t)(count + 1), 0);
  gbl_box **boxes = push_boxes(L, count);
  gbl_check_status(L, gb_split_whole(list, count, made));
  for (int i = 0; i < count; i++) boxes[i]->tensor = made[i];
  return 1;
}

/* check_scales(who, tensors): gradients that add up several scales are an error. */
static int check_scales(lua_State *L) {
  int count;
  const char *who = luaL_checkstring(L, 1);
  gb_tensor **list = gbl_check_tensors(L, 2, "gradients", "tensors", &count);
  for (int i = 0; i < count; i++)
    if (gb_tensor_tag(list[i]).scaler == GB_TAG_MIXED)
      return gbl_error(L, "%s: gradient %d %s", who, i + 1, gb_mixed_tag_text(gb_tensor_tag(list[i])));
  return 0;
}

/* is_part(tensor): is it a gradient that is shared out? */
static int is_part(lua_State *L) {
  lua_pushboolean(L, gb_split_is_part(gbl_check_tensor(L, 1)));
  return 1;
}

/* ====} */

void gbl_open_dist(lua_State *L) {
  gbl_new_type(L, &shards_type);
  gbl_new_type(L, &group_type);
  gbl_new_type(L, &handle_type);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "shards", shards_new }, { "shard", shard }, { "join", join },
                                            { "gather", gather },
                                            { "whole_gradients", whole_gradients }, { "is_part", is_part },
                                            { "check_scales", check_scales },
                                            { "launch_size", launch_size }, { NULL, NULL } });
  lua_pop(L, 1);
  gbl_push_module(L, "dist");
  gbl_define(L, functions);
  lua_pop(L, 1);
}

void gbl_note_end(lua_State *L, bool failed) {
  gb_context *context = gbl_get_state(L)->context;
  if (context) context->dist->failing = failed;
}
