//! The real command against the lab: every verb, every refusal, every exit code.

mod caching;
mod copying;
mod doctor;
mod harness;
mod listing;
mod mounting;
mod reading;
mod settings;
