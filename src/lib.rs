//! pushpull
