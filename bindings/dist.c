/* dist.c - gb.dist: the processes of a job, and what they exchange. Without init this process is a job of one. */
#include "dist/room.h"
#include "dist/shards.h"
#include "dist/tensors.h"
#include "reader.h"

/* The job; NULL: this process is alone. */
static gb_comm *job_of(const gbl_call *call) {
  gb_comm *comm = gb_dist_comm(call->state->context);
  return comm && comm->size > 1 ? comm : NULL;
}

/* The number of another rank, or of any. */
static int rank_argument(const gbl_call *call, const char *name, bool other) {
  const gb_comm *comm = gb_dist_comm(call->state->context);
  int64_t rank = gbl_integer(call, name), size = comm ? comm->size : 1;
  if (rank >= size) return gbl_refuse(call, "'%s' is rank %lld, and the job has %lld: 0 to %lld", name, (long long)rank,
                                      (long long)size, (long long)size - 1);
  if (other && rank == (comm ? comm->rank : 0))
    return gbl_refuse(call, "'%s' is rank %lld, which is this process; a message goes to another one", name,
                      (long long)rank);
  return (int)rank;
}

static gb_dist_op op_argument(const gbl_call *call) {
  int op = 0;
  while (op < GB_DIST_OPS - 1 && strcmp(gbl_string(call, "op"), gb_dist_op_names[op])) op++;
  return (gb_dist_op)op;
}

/* A result that is the argument itself, written in place. */
static int same_tensor(lua_State *L, const gbl_call *call) {
  lua_pushvalue(L, gbl_argument(call, "tensor")->index);
  return 1;
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

static int rank(lua_State *L, gbl_call *call) {
  const gb_comm *comm = gb_dist_comm(call->state->context);
  lua_pushinteger(L, comm ? comm->rank : 0);
  return 1;
}

static int world_size(lua_State *L, gbl_call *call) {
  const gb_comm *comm = gb_dist_comm(call->state->context);
  lua_pushinteger(L, comm ? comm->size : 1);
  return 1;
}

static int local_rank(lua_State *L, gbl_call *call) {
  const gb_comm *comm = gb_dist_comm(call->state->context);
  lua_pushinteger(L, comm ? comm->local_rank : 0);
  return 1;
}

static int barrier(lua_State *L, gbl_call *call) {
  gb_comm *comm = job_of(call);
  if (!comm) return 0;
  gbl_check_status(L, gb_comm_begin(comm, "dist.barrier"));
  return gbl_check_status(L, gb_comm_end(comm, gb_comm_barrier(comm)));
}

static int broadcast(lua_State *L, gbl_call *call) {
  int source = rank_argument(call, "source", false);
  if (job_of(call)) gbl_check_status(L, gb_dist_broadcast(job_of(call), gbl_tensor(call, "tensor"), source));
  return same_tensor(L, call);
}

/* A job of one, for collectives that have results of their own. */
static gb_comm *job_or_alone(const gbl_call *call, gb_comm *alone) {
  *alone = (gb_comm){ .context = call->state->context, .size = 1, .timeout = 1 };
  return job_of(call) ? job_of(call) : alone;
}

static int all_reduce(lua_State *L, gbl_call *call) {
  gb_comm alone;
  gbl_check_status(L, gb_dist_all_reduce(job_or_alone(call, &alone), gbl_tensor(call, "tensor"), op_argument(call)));
  return same_tensor(L, call);
}

static int all_gather(lua_State *L, gbl_call *call) {
  gb_comm alone, *comm = job_or_alone(call, &alone);
  gb_tensor **made = lua_newuserdatauv(L, sizeof *made * (size_t)comm->size, 0);
  int size = comm->size;
  lua_createtable(L, size, 0);
  luaL_checkstack(L, size + 8, "all_gather");
  gbl_box **boxes = lua_newuserdatauv(L, sizeof *boxes * (size_t)size, 0);
  for (int i = 0; i < size; i++) { /* first what will hold them */
    boxes[i] = gbl_new_tensor(L);
    lua_rawseti(L, -3, i + 1);
  }
  gbl_check_status(L, gb_dist_all_gather(comm, gbl_tensor(call, "tensor"), made));
  for (int i = 0; i < size; i++) boxes[i]->tensor = made[i];
  lua_pop(L, 1);
  return 1;
}

static int reduce_scatter(lua_State *L, gbl_call *call) {
  gb_comm alone;
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_dist_reduce_scatter(job_or_alone(call, &alone), gbl_tensor(call, "tensor"),
                                             op_argument(call), &box->tensor));
  gbl_finish_tensor(L);
  return 1;
}

static int send(lua_State *L, gbl_call *call) {
  int to = rank_argument(call, "to", true);
  return gbl_check_status(L, gb_dist_send(job_of(call), gbl_tensor(call, "tensor"), to));
}

static int recv(lua_State *L, gbl_call *call) {
  int from = rank_argument(call, "from", true);
  gbl_check_status(L, gb_dist_recv(job_of(call), gbl_tensor(call, "tensor"), from));
  return same_tensor(L, call);
}

static const gbl_function functions[] = {
  { init, GB_SANDBOX_NONE,
    "gb.dist.init(; rank?: count, world_size?: size, local_rank?: count, timeout: number = 300): Join the job that "
    "this process was started in, by mpirun -n 4 gibbous recipe.lua. Which rank it is of how many is read from what "
    "is given, or from the environment of OpenMPI or SLURM; a process that was started alone is a job of one. timeout "
    "is how many seconds one message may take. Errors: no MPI plugin, numbers that MPI does not agree with, "
    "torchrun's environment, which is for NCCL. Example: gb.dist.init() gb.dist.finalize()" },
  { finalize, GB_SANDBOX_NONE,
    "gb.dist.finalize(): Leave the job, once all have come here. The end of a recipe does it too. Example: "
    "gb.dist.finalize()" },
  { is_initialized, GB_SANDBOX_STRICT,
    "gb.dist.is_initialized() -> bool: Has this process joined a job? Example: print(gb.dist.is_initialized())" },
  { rank, GB_SANDBOX_STRICT,
    "gb.dist.rank() -> int: The number of this process in the job, from 0. Example: if gb.dist.rank() == 0 then "
    "print(\"once\") end" },
  { world_size, GB_SANDBOX_STRICT,
    "gb.dist.world_size() -> int: How many processes the job has; 1 where none was joined. Example: "
    "print(gb.dist.world_size())" },
  { local_rank, GB_SANDBOX_STRICT,
    "gb.dist.local_rank() -> int: The number of this process among those of its machine, from 0. Example: "
    "print(gb.dist.local_rank())" },
  { barrier, GB_SANDBOX_STRICT,
    "gb.dist.barrier(): Wait until every process has come here. Errors: the timeout. Example: gb.dist.barrier()" },
  { broadcast, GB_SANDBOX_STRICT,
    "gb.dist.broadcast(tensor: tensor, source: count = 0) -> tensor: Every process gets the values of the source's "
    "tensor, in place. Errors: a rank that is not there, tensors of different sizes. Example: "
    "gb.dist.broadcast(gb.zeros(3))" },
  { all_reduce, GB_SANDBOX_STRICT,
    "gb.dist.all_reduce(tensor: tensor, op: \"sum\"|\"mean\"|\"max\"|\"or\" = \"sum\") -> tensor: The tensors of all "
    "processes become their sum, mean, maximum or bitwise or, in place, by a fixed tree over the ranks; 16-bit floats "
    "are added in float32. Errors: an op that the dtype does not have, tensors of different sizes. Example: "
    "gb.dist.all_reduce(gb.ones(3), \"mean\")" },
  { all_gather, GB_SANDBOX_STRICT,
    "gb.dist.all_gather(tensor: tensor) -> list: The tensors of all processes, in order of their ranks: that of rank 0 "
    "is the first. Errors: tensors of different sizes. Example: print(#gb.dist.all_gather(gb.ones(3)))" },
  { reduce_scatter, GB_SANDBOX_STRICT,
    "gb.dist.reduce_scatter(tensor: tensor, op: \"sum\"|\"mean\"|\"max\"|\"or\" = \"sum\") -> tensor: This process's "
    "part of what all_reduce would give, where dimension 1 is cut into as many equal parts as there are ranks. "
    "Errors: a dimension that they cannot share evenly. Example: print(gb.dist.reduce_scatter(gb.ones(8)))" },
  { send, GB_SANDBOX_STRICT,
    "gb.dist.send(tensor: tensor, to: count): Send the values to one other process, which calls recv. Errors: a rank "
    "that is not there, or is this process. Example: if gb.dist.world_size() > 1 and gb.dist.rank() == 0 then "
    "gb.dist.send(gb.ones(3), 1) end" },
  { recv, GB_SANDBOX_STRICT,
    "gb.dist.recv(tensor: tensor, from: count) -> tensor: Receive values from one other process, in place: of the same "
    "shape and dtype as those that were sent. Errors: a rank that is not there, or is this process. Example: if "
    "gb.dist.rank() == 1 then gb.dist.recv(gb.zeros(3), 0) end" },
  { NULL, 0, NULL },
};

/* {==== Virtual shards: objects of the Lua half, nn/parallel.lua ==== */

static const gbl_type shards_type;
static void release(void *object) { gb_shards_free(object); }

/* shards(count) */
static int shards_new(lua_State *L) {
  gb_context *context = gbl_context(L);
  int64_t count = gbl_check_integer(L, 1, "DataParallel", "shards");
  void **slot = gbl_new_object(L, &shards_type, 0);
  gb_shards *made = NULL;
  gb_status status = gb_shards_new(context, count, &made);
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
    names[i] = lua_tostring(L, -1); /* the table keeps it */
    lua_pop(L, 1);
  }
  return gbl_check_status(L, gb_shards_agree(s, tensors, names, count));
}

/* shards:begin(parameters, buffers, samples, holds) */
static int shards_begin(lua_State *L) {
  gbl_enter(L);
  gb_shards *s = gbl_check_object(L, 1, &shards_type);
  int n_parameters = 0, n_buffers = 0;
  gb_tensor **parameters = gbl_check_tensors(L, 2, "DataParallel:shards", "model", &n_parameters);
  gb_tensor **buffers = gbl_check_tensors(L, 3, "DataParallel:shards", "model", &n_buffers);
  int64_t samples = gbl_check_integer(L, 4, "DataParallel:shards", "samples");
  return gbl_check_status(L, gb_shards_begin(s, parameters, n_parameters, buffers, n_buffers, samples,
                                             lua_toboolean(L, 5)));
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

static const luaL_Reg shards_methods[] = {
  { "agree", shards_agree }, { "begin", shards_begin }, { "next", shards_next }, { "abandon", shards_abandon },
  { "is_open", shards_is_open }, { "record", shards_record }, { "loss", shards_loss }, { NULL, NULL },
};
static const gbl_type shards_type = { "gibbous.shards", release, shards_methods, NULL, NULL };

/* ====} */

void gbl_open_dist(lua_State *L) {
  gbl_new_type(L, &shards_type);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "shards", shards_new }, { NULL, NULL } });
  lua_pop(L, 1);
  gbl_push_module(L, "dist");
  gbl_define(L, functions);
  lua_pop(L, 1);
}

void gbl_note_failure(lua_State *L) {
  gb_context *context = gbl_get_state(L)->context;
  if (context) context->dist->failing = true;
}
