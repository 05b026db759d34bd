/* base/sanitizer.h - is this built with the address sanitizer? It sees uses of freed memory only where memory comes
 * from its own allocator. */
#ifndef GB_BASE_SANITIZER_H
#define GB_BASE_SANITIZER_H

#define GB_ADDRESS_SANITIZER 0
#if defined(__SANITIZE_ADDRESS__)
#undef GB_ADDRESS_SANITIZER
#define GB_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#undef GB_ADDRESS_SANITIZER
#define GB_ADDRESS_SANITIZER 1
#endif
#endif

#endif
