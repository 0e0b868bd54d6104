//! The adapter: introduces peers, decides policy, keeps the books.
