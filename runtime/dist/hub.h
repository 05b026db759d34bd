/* hub.h - a thread of rank 0 that brings the two sides of each message together, for a library that knows neither tags
 * nor limits (pairs.h).
 *
 * Every rank tells it what it wants to send and to receive. What both sides want, both are told to move: in rounds, of
 * which each rank hears in the same order, so that no two ranks ever wait for each other in turn. What fits into a
 * packet goes along with it; so do heartbeats. A rank whose connection ends is told to all. */
#ifndef GB_DIST_HUB_H
#define GB_DIST_HUB_H

#include <stddef.h>
#include <stdint.h>

#define GB_PACKET_BYTES ((uint64_t)1024) /* that go along; longer messages are moved by the library */

/* What a packet says: those up to LEAVE to the hub, the others from it. */
typedef enum gb_word {
  GB_WORD_SEND,                       /* want to send so many bytes; a message that fits follows, and is sent */
  GB_WORD_OFFER,                      /* want to send what lies on a device: the library moves it, however short */
  GB_WORD_RECEIVE, GB_WORD_DROP,      /* want to receive; do not want any more, if it has not been matched */
  GB_WORD_SUM,                        /* want to add up; tag: the dtype */
  GB_WORD_LEAVE,                      /* this is the end, as it should be; tag 1: by a failure */
  GB_WORD_ID,                         /* of the library; it follows */
  GB_WORD_GIVE,                       /* a message, which follows */
  GB_WORD_LENGTH,                     /* the other side's message has another length, and is not moved */
  GB_WORD_MOVE, GB_WORD_GO,           /* take part in the next round; begin it */
  GB_WORD_GONE,                       /* a rank has gone; tag 1: it said that it fails */
  GB_WORD_UNLIKE,                     /* the ranks add up unlike things */
} gb_word;

typedef struct gb_packet {
  int32_t word, peer, tag;
  uint32_t id;                        /* of the message, which its rank has given it */
  uint64_t bytes;                     /* its length */
} gb_packet;

/* Does content follow the packet? */
static inline int gb_packet_carries(const gb_packet *p) {
  return (p->word == GB_WORD_SEND && p->bytes <= GB_PACKET_BYTES) || p->word == GB_WORD_GIVE || p->word == GB_WORD_ID;
}

/* Bytes on their way in or out. */
typedef struct gb_stream_buffer { char *data; size_t begin, end, room; } gb_stream_buffer;

/* Behind what is there; 0: there is no memory. */
int gb_buffer_put(gb_stream_buffer *buffer, const void *data, size_t bytes);
/* Send, or receive, what goes without waiting; 0: the connection has ended. */
int gb_buffer_send(gb_stream_buffer *buffer, int socket);
int gb_buffer_receive(gb_stream_buffer *buffer, int socket);
/* The next packet that is there as a whole, with its content behind it, which stays until the next call: 1; 0: none is
 * yet; -1: this is no packet. */
int gb_buffer_take(gb_stream_buffer *buffer, gb_packet *out, const char **content);
void gb_buffer_free(gb_stream_buffer *buffer);

typedef struct gb_hub gb_hub;

/* The sockets of all ranks, which are the hub's then; all are sent the id at once. NULL: no memory, or no thread, and
 * the sockets are still the caller's. */
gb_hub *gb_hub_open(int size, const int *sockets, const void *id, size_t id_bytes);
/* It waits until all have left, for so many seconds. */
void gb_hub_close(gb_hub *hub, double seconds);

#endif
