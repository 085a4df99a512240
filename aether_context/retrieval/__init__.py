from .ranking import Found, Left, query_of, retrieve, score, bm25, diversify
