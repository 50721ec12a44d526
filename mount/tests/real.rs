//! Real mounts, made by this process and used through the kernel. They run as root; one test mounts as another user.

#[path = "real/support.rs"]
mod support;

#[path = "real/basics.rs"]
mod basics;
