/* data/csv.h - what was learned from the columns of a table, from where it was kept. */
#ifndef GB_DATA_CSV_H
#define GB_DATA_CSV_H

#include "data/dataset.h"

/* An empty dataset that other tables can be `fitted` to: of each field its name, is_category, tensor ("y" of the
 * target), mean and std, or the sorted words; all is copied. */
gb_status gb_csv_fitted(gb_context *context, const gb_field *fields, int count, bool standardize, gb_dataset **out);

#endif
