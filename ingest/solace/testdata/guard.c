// The guard of guard_linux.c between a client and a library that are played here. It ends with 0, or says what is wrong.

#include "../guard_linux.c"

#include <stdio.h>
#include <string.h>

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
      exit(1); \
    } \
  } while (0)

// The library: one flow, whose calls can be held.
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static const char *held = "";     // calls of this name wait
static const char *within = "";   // name of the call that waits
static char story[200];           // the calls that took effect, in order
static int refused, next_result;

static result call(const char *name, handle h) {
  pthread_mutex_lock(&mutex);
  if (!h) {
    refused++;
    pthread_mutex_unlock(&mutex);
    return -1;
  }
  while (!strcmp(held, name)) {
    within = name;
    pthread_cond_broadcast(&changed);
    pthread_cond_wait(&changed, &mutex);
  }
  within = "";
  strcat(strcat(story, name), " ");
  result r = next_result;
  next_result = ok;
  pthread_mutex_unlock(&mutex);
  return r;
}

result __real_solClient_session_createFlow(const char **p, handle s, handle *h, void *f, size_t n) {
  (void)p, (void)f, (void)n;
  result r = call("create", s);
  if (r == ok) *h = 77;
  return r;
}
result __real_solClient_session_destroy(handle *s) { return call("end", *s); }
result __real_solClient_flow_destroy(handle *h) { return call("destroy", *h); }
result __real_solClient_flow_start(handle h) { return call("start", h); }
result __real_solClient_flow_stop(handle h) { return call("stop", h); }
result __real_solClient_flow_settleMsg(handle h, uint64_t id, int outcome) {
  (void)id, (void)outcome;
  return call("settle", h);
}

static void hold(const char *name) {
  pthread_mutex_lock(&mutex);
  held = name;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static void await_within(const char *name) {
  pthread_mutex_lock(&mutex);
  while (strcmp(within, name)) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
}

// await_ending waits until the flow's end, or its session's, has begun and waits.
static void await_ending(void) {
  for (int ending = 0; !ending;) {
    pthread_mutex_lock(&lock);
    ending = flows && flows->ending;
    pthread_mutex_unlock(&lock);
  }
}

static handle session, flow;

static void *settle(void *r) { return *(result *)r = __wrap_solClient_flow_settleMsg(77, 1, 0), NULL; }
static void *start(void *r) { return *(result *)r = __wrap_solClient_flow_start(77), NULL; }
static void *create(void *r) { return *(result *)r = __wrap_solClient_session_createFlow(NULL, 5, &flow, NULL, 0), NULL; }
static void *destroy(void *r) { return *(result *)r = __wrap_solClient_flow_destroy(&flow), NULL; }
static void *end(void *r) { return *(result *)r = __wrap_solClient_session_destroy(&session), NULL; }

static void begin(void) {
  session = 5, refused = 0;
  CHECK(__wrap_solClient_session_createFlow(NULL, session, &flow, NULL, 0) == ok && flow == 77);
  story[0] = 0;
}

static void finish(void) {
  __wrap_solClient_session_destroy(&session);
  CHECK(!flows && !endings);
}

static void the_end_waits_for_a_call(void *(*how)(void *), const char *want) {
  begin();
  hold("settle");
  pthread_t caller, ender;
  result called, ended;
  pthread_create(&caller, NULL, settle, &called);
  await_within("settle");
  pthread_create(&ender, NULL, how, &ended);
  await_ending();
  CHECK(__wrap_solClient_flow_settleMsg(flow, 2, 0) != ok && __wrap_solClient_flow_start(flow) != ok && __wrap_solClient_flow_stop(flow) != ok);
  CHECK(refused == 3 && !*story);
  hold("");
  pthread_join(caller, NULL), pthread_join(ender, NULL);
  CHECK(called == ok && ended == ok && !strcmp(story, want));
  CHECK(__wrap_solClient_flow_settleMsg(flow, 3, 0) != ok && __wrap_solClient_flow_destroy(&flow) != ok);
  finish();
}

static void the_end_of_a_session_waits_for_a_bind(void) {
  session = 5, story[0] = 0;
  hold("create");
  pthread_t caller, ender;
  result called, ended;
  pthread_create(&caller, NULL, create, &called);
  await_within("create");
  handle late = 0;
  CHECK(__wrap_solClient_flow_settleMsg(0, 1, 0) != ok && __wrap_solClient_flow_destroy(&late) != ok); // 0 is not the flow that is being made
  CHECK(flows->calls == 1 && !flows->ending);
  pthread_create(&ender, NULL, end, &ended);
  await_ending();
  CHECK(__wrap_solClient_session_createFlow(NULL, session, &late, NULL, 0) != ok && !late);
  hold("");
  pthread_join(caller, NULL), pthread_join(ender, NULL);
  CHECK(called == ok && ended == ok && !strcmp(story, "create end "));
  finish();
}

static void a_bind_that_fails_leaves_nothing(void) {
  next_result = -1, session = 5;
  CHECK(__wrap_solClient_session_createFlow(NULL, session, &flow, NULL, 0) != ok && !flows);
}

static void a_start_that_a_stop_has_overtaken_is_void(void) {
  begin();
  __wrap_solClient_flow_start(flow);
  __wrap_solClient_flow_stop(flow);
  __wrap_solClient_flow_stop(flow); // the client has noted a start, and stops anew
  __wrap_solClient_flow_start(flow); // that start
  CHECK(!strcmp(story, "start stop "));
  __wrap_solClient_flow_start(flow);
  CHECK(!strcmp(story, "start stop start "));
  finish();
}

static void a_stop_during_a_start_is_the_later_one(void) {
  begin();
  hold("start");
  pthread_t starter;
  result started;
  pthread_create(&starter, NULL, start, &started);
  await_within("start");
  CHECK(__wrap_solClient_flow_stop(flow) == ok); // at once: the thread that brings the messages cannot wait
  CHECK(!strcmp(story, "stop "));
  hold("");
  pthread_join(starter, NULL);
  CHECK(started == ok && !strcmp(story, "stop start stop "));
  finish();
}

static void what_the_library_refuses_is_not_so(void) {
  begin();
  next_result = -1;
  CHECK(__wrap_solClient_flow_start(flow) != ok);
  CHECK(__wrap_solClient_flow_stop(flow) == ok && __wrap_solClient_flow_start(flow) == ok); // the client has noted one more start
  CHECK(!strcmp(story, "start "));
  CHECK(__wrap_solClient_flow_start(flow) == ok);
  next_result = -1;
  CHECK(__wrap_solClient_flow_stop(flow) != ok);
  CHECK(__wrap_solClient_flow_stop(flow) == ok);
  CHECK(!strcmp(story, "start start stop stop "));
  finish();
}

int main(void) {
  the_end_waits_for_a_call(destroy, "settle destroy ");
  the_end_waits_for_a_call(end, "settle end ");
  the_end_of_a_session_waits_for_a_bind();
  a_bind_that_fails_leaves_nothing();
  a_start_that_a_stop_has_overtaken_is_void();
  a_stop_during_a_start_is_the_later_one();
  what_the_library_refuses_is_not_so();
  return 0;
}
