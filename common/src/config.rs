//! Settings: flag over environment over file over default, refused before any connection.
