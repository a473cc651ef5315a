//go:build cgo

// See guard_linux.go. The linker gives the client the functions __wrap_NAME for the library's NAME, which are here __real_NAME.

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// The library's types, as its header has them for Go. Handles are numbers that are not given twice, and 0 is none: a call that is
// refused gets what the library says of 0, an error.
typedef uintptr_t handle;
typedef int result;
enum { ok = 0 };

result __real_solClient_session_createFlow(const char **, handle, handle *, void *, size_t);
result __real_solClient_session_destroy(handle *);
result __real_solClient_flow_destroy(handle *);
result __real_solClient_flow_start(handle);
result __real_solClient_flow_stop(handle);
result __real_solClient_flow_settleMsg(handle, uint64_t, int);

// One flow, from before it is created until it is destroyed.
struct flow {
  struct flow *next;
  handle session, flow;
  int calls;     // under way
  int ending;    // no further calls
  int runs;      // as the client wants it
  int starting;  // a call is seeing to that
  int overtaken; // starts that are void, and still to come
};

// One session that is being destroyed.
struct ending {
  struct ending *next;
  handle session;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // never held during a call of the library
static pthread_cond_t returned = PTHREAD_COND_INITIALIZER;
static struct flow *flows;
static struct ending *endings;

static void forget(struct flow *gone) {
  for (struct flow **f = &flows; *f; f = &(*f)->next)
    if (*f == gone) {
      *f = gone->next;
      free(gone);
      return;
    }
}

// find returns NULL for what is no flow, or none any more: the client also asks for 0, the handle of flows that are being made.
static struct flow *find(handle h) {
  struct flow *f = h ? flows : NULL;
  while (f && (f->flow != h || f->ending)) f = f->next;
  return f;
}

// enter begins a call that uses a flow; NULL refuses it.
static struct flow *enter(handle h) {
  pthread_mutex_lock(&lock);
  struct flow *f = find(h);
  if (f) f->calls++;
  pthread_mutex_unlock(&lock);
  return f;
}

static void leave(struct flow *f) {
  pthread_mutex_lock(&lock);
  f->calls--;
  pthread_cond_broadcast(&returned);
  pthread_mutex_unlock(&lock);
}

result __wrap_solClient_flow_settleMsg(handle h, uint64_t id, int outcome) {
  struct flow *f = enter(h);
  if (!f) return __real_solClient_flow_settleMsg(0, id, outcome);
  result r = __real_solClient_flow_settleMsg(h, id, outcome);
  leave(f);
  return r;
}

// The client stops a flow when too many of its messages wait, and starts it when they were taken, from two threads. It notes a start
// before it calls start. A stop that comes in between is the later of the two, but would be undone by that start: the client then takes
// for stopped a flow that runs, and throws away what it has no room for, without a word to the reader. So such a start is void.

result __wrap_solClient_flow_stop(handle h) {
  struct flow *f = enter(h);
  if (!f) return __real_solClient_flow_stop(0);
  pthread_mutex_lock(&lock);
  int ran = f->runs;
  f->runs = 0;
  if (!ran) f->overtaken++; // nobody stops what is stopped: a start was noted, and is still to come
  pthread_mutex_unlock(&lock);
  result r = ran ? __real_solClient_flow_stop(h) : ok;
  if (r != ok) {
    pthread_mutex_lock(&lock);
    f->runs = 1; // as the client takes it after an error
    pthread_mutex_unlock(&lock);
  }
  leave(f);
  return r;
}

result __wrap_solClient_flow_start(handle h) {
  struct flow *f = enter(h);
  if (!f) return __real_solClient_flow_start(0);
  result r = ok;
  pthread_mutex_lock(&lock);
  if (f->overtaken) {
    f->overtaken--;
  } else {
    f->runs = 1;
    if (!f->starting) {
      f->starting = 1;
      for (int settled = 0; !settled;) {
        int runs = f->runs;
        pthread_mutex_unlock(&lock);
        // A stop that came during the start is done again, for it is not known which of them the library did last.
        r = runs ? __real_solClient_flow_start(h) : __real_solClient_flow_stop(h);
        pthread_mutex_lock(&lock);
        if (r != ok) f->runs = 0; // as the client takes it after an error
        settled = r != ok || f->runs == runs;
      }
      f->starting = 0;
    }
  }
  pthread_mutex_unlock(&lock);
  leave(f);
  return r;
}

result __wrap_solClient_session_createFlow(const char **properties, handle session, handle *h, void *functions, size_t size) {
  struct flow *f = calloc(1, sizeof *f);
  if (!f) return __real_solClient_session_createFlow(properties, 0, h, functions, size);
  f->session = session, f->calls = 1;
  pthread_mutex_lock(&lock);
  struct ending *e = endings;
  while (e && e->session != session) e = e->next;
  if (!e) f->next = flows, flows = f;
  pthread_mutex_unlock(&lock);
  if (e) {
    free(f);
    return __real_solClient_session_createFlow(properties, 0, h, functions, size);
  }
  result r = __real_solClient_session_createFlow(properties, session, h, functions, size);
  pthread_mutex_lock(&lock);
  f->flow = *h, f->calls--;
  if (r != ok) forget(f);
  pthread_cond_broadcast(&returned);
  pthread_mutex_unlock(&lock);
  return r;
}

result __wrap_solClient_flow_destroy(handle *h) {
  pthread_mutex_lock(&lock);
  struct flow *f = find(*h);
  if (f) {
    f->ending = 1;
    f->calls++; // this one, for the session's end to wait for
    while (f->calls > 1) pthread_cond_wait(&returned, &lock);
  }
  pthread_mutex_unlock(&lock);
  if (!f) {
    handle none = 0;
    return __real_solClient_flow_destroy(&none);
  }
  result r = __real_solClient_flow_destroy(h);
  pthread_mutex_lock(&lock);
  forget(f);
  pthread_cond_broadcast(&returned);
  pthread_mutex_unlock(&lock);
  return r;
}

// used says whether a call that uses a flow of the session is under way, and has further ones refused.
static int used(handle session) {
  int calls = 0;
  for (struct flow *f = flows; f; f = f->next)
    if (f->session == session) f->ending = 1, calls += f->calls;
  return calls > 0;
}

result __wrap_solClient_session_destroy(handle *session) {
  struct ending e = {.session = *session};
  pthread_mutex_lock(&lock);
  e.next = endings, endings = &e;
  while (used(e.session)) pthread_cond_wait(&returned, &lock);
  pthread_mutex_unlock(&lock);
  result r = __real_solClient_session_destroy(session);
  pthread_mutex_lock(&lock);
  for (struct ending **o = &endings; *o; o = &(*o)->next)
    if (*o == &e) {
      *o = e.next;
      break;
    }
  for (struct flow *f = flows, *next; f; f = next) {
    next = f->next;
    if (f->session == e.session) forget(f);
  }
  pthread_mutex_unlock(&lock);
  return r;
}
