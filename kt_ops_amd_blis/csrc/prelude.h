#include "kt_blis.h"
