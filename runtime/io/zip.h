/* io/zip.h - the members of a zip archive (PKWARE APPNOTE 6.3.10, sections 4.3 to 4.4), read one at a time.
 *
 * Members are stored or deflated. Nothing is believed before it is checked: places and lengths against the file, what a
 * member unpacks to against what deflate can, and its check sum at its end. Left out: zip64 (archives and members of
 * 4 GiB and more), encryption, archives in parts, bytes in front of an archive. */
#ifndef GB_IO_ZIP_H
#define GB_IO_ZIP_H

#include "io/file.h"

typedef struct gb_zip gb_zip;
typedef struct gb_member gb_member;

gb_status gb_zip_open(gb_context *context, const char *path, gb_zip **out);
void gb_zip_close(gb_zip *zip);                          /* NULL is fine */

/* Members are listed in the order of the archive, from 0; their names differ. */
int64_t gb_zip_count(const gb_zip *zip);
const char *gb_zip_name(const gb_zip *zip, int64_t i);
uint64_t gb_zip_size(const gb_zip *zip, int64_t i);      /* unpacked */

/* Begin to read a member; the archive stays open until it ends. */
gb_status gb_member_open(gb_zip *zip, int64_t i, gb_member **out);
/* The next bytes, all of them. */
gb_status gb_member_read(gb_member *member, void *to, size_t bytes);
/* Was all of it read, and does the check sum agree? */
gb_status gb_member_check(gb_member *member);
void gb_member_close(gb_member *member);                 /* NULL is fine */

/* {==== Writing: members that are stored ==== */

typedef struct gb_zip_entry { const char *name; uint32_t crc; uint64_t bytes, offset; } gb_zip_entry;

/* The header of a member at byte *at; its bytes come after it, and *at becomes the place behind them. */
gb_status gb_zip_write_header(gb_file_writer *file, gb_zip_entry *entry, uint64_t *at);
/* Behind the last member, which ends at byte `at`: the directory. */
gb_status gb_zip_write_directory(gb_file_writer *file, const gb_zip_entry *entries, int64_t count, uint64_t at);
/* Bytes that an archive of these takes; what is above GB_ZIP_MOST cannot be written. */
uint64_t gb_zip_bytes(const gb_zip_entry *entries, int64_t count);
#define GB_ZIP_MOST ((uint64_t)0xfffffffe)
#define GB_ZIP_MEMBERS_MOST 65534

/* ====} */

#endif
